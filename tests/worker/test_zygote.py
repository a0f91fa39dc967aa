"""How a zygote ends when its runner has."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from conformance.runner.processes import sessions, temporary
from conformance.worker import zygote


@pytest.mark.parametrize("ends", [True, False])
def test_a_runs_folder_is_removed_once_the_runner_has_ended_and_not_before(
    ends: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its socket closes before its children have another parent."""
    folder = tmp_path / f"{temporary.PREFIX}run"
    folder.mkdir()
    parents = iter([7, 7, 7])
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(sessions, "kill_descendants", lambda pid: set())
    monkeypatch.setattr(os, "getppid", lambda: next(parents, 1 if ends else 7))
    monkeypatch.setattr(zygote, "_PARENT_GONE_WITHIN", 30.0 if ends else 0.0)
    ours, its = socket.socketpair()
    with ours, its:
        zygote.ZygoteLoop(its, parent=7).end()
    assert folder.exists() is not ends
