"""Which cells of an interrupted run still stand."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.runner.scheduling.reuse import finished_before
from conformance.runner.store import GroupFolder
from conformance.spec.records import Outcome, Status


@pytest.mark.parametrize(
    ("outcome", "stands", "stands_in_ours"),
    [
        (Outcome(Status.OK), True, True),
        (Outcome(Status.UNSUPPORTED, reason="no such kernel"), True, True),
        (Outcome(Status.ERROR, reason="RuntimeError: a bad shape"), True, False),
        (Outcome(Status.ERROR, reason="TypeError", harness=True), False, False),
        (Outcome(Status.CRASH, reason="SIGKILL", outside=True), False, False),
        (
            Outcome(Status.ERROR, reason="RuntimeError: Insufficient space in /dev/shm for 1 MiB"),
            False,
            False,
        ),
        (Outcome(Status.ERROR, reason="OSError: [Errno 28] No space left on device"), False, False),
        (Outcome(Status.ERROR, reason="OSError: [Errno 27] File too large"), False, False),
    ],
)
def test_what_may_end_otherwise_the_next_time_is_observed_again(
    tmp_path: Path, outcome: Outcome, *, stands: bool, stands_in_ours: bool
) -> None:
    for ours, kept in ((False, stands), (True, stands_in_ours)):
        folder = GroupFolder(tmp_path / f"{ours}")
        folder.write_cell("plain.first", outcome, {})
        folder.write_keys({"plain.first": "key"})
        found = finished_before(folder, {"plain.first": "key"}, ours=ours)
        assert bool(found) is kept
        assert (folder.outcome("plain.first") is not None) is kept
        assert finished_before(folder, {"plain.first": "another"}, ours=ours) == {}
