"""Honest runs held out: measured as the judge measures, and by the others only."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from conformance.calibration import CleanCase, held_out
from conformance.errors import ConformanceError
from conformance.records import Case, Outcome, Status
from conformance.store import GroupFolder
from tests.judge import toy

CASE = Case("reading", "all", ("a", "b"))


def clean(folder: Path, members: dict[str, toy.Observations]) -> CleanCase:
    group = GroupFolder(folder)
    tensors = {f"{m}|{site}": value for m, own in members.items() for site, value in own.items()}
    group.write_cell(CASE.key, Outcome(Status.OK, prompt_ids=toy.IDS), tensors)
    return CleanCase("toy", "reading.all@0", group, CASE, twin=False)


def five() -> dict[str, toy.Observations]:
    members = toy.reference(toy.observe)
    return members | {"fifth": toy.observe(torch.bfloat16, toy.CANDIDATE)}


def test_each_member_is_judged_by_the_others_as_a_cell_would_be(tmp_path: Path) -> None:
    members, seen = five(), []
    found = {one.member: one for one in held_out([clean(tmp_path, members)], seen.append)}
    assert found.keys() == members.keys() - {"truth"}
    assert [one.name for one in seen] == ["reading.all@0"]
    for name, score in found.items():
        rest = {other: values for other, values in members.items() if other != name}
        cell = toy.judge(members[name], rest)
        rows = [one for one in cell.observations if one.q_max is not None]
        assert score.q_max == pytest.approx(max(one.q_max or 0.0 for one in rows))
        several = [one.q_med or 0.0 for one in rows if len(one.ratios) > 1]
        assert score.q_med == pytest.approx(max(several))
        assert score.site == cell.worst_site


def test_a_dishonest_member_is_seen(tmp_path: Path) -> None:
    members = five()
    members["fifth"]["p1/s0/stream.3"] = members["fifth"]["p1/s0/stream.3"] * 1.1
    found = {one.member: one for one in held_out([clean(tmp_path, members)], lambda _: None)}
    assert found["fifth"].q_max > 10
    assert found["fifth"].site == "p1/s0/stream.3"


def test_a_member_on_the_other_side_of_ties_widens_the_floor_and_is_not_judged(
    tmp_path: Path,
) -> None:
    """It takes them all so, which no engine does."""
    members = five()
    before = {one.member: one for one in held_out([clean(tmp_path, members)], lambda _: None)}
    members["fifth_ties"] = {site: value * 1.1 for site, value in members["fifth"].items()}
    after = {one.member: one for one in held_out([clean(tmp_path, members)], lambda _: None)}
    assert after.keys() == before.keys()
    assert after["fifth"].q_max < before["fifth"].q_max


def test_a_reference_that_failed_is_said_with_its_log(tmp_path: Path) -> None:
    group = GroupFolder(tmp_path)
    group.write_cell(CASE.key, Outcome(Status.CRASH, reason="killed by signal 9"), {})
    case = CleanCase("toy", "reading.all@0", group, CASE, twin=False)
    with pytest.raises(ConformanceError, match="failed: killed by signal 9"):
        list(held_out([case], lambda _: None))
