"""Models judged in processes of their own get the verdicts that they get in this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.judge.runs import run as judging
from conformance.runner.store import RunFolder
from conformance.spec.records import Verdict
from tests.judge.runs.test_one_case import MODEL, judged_models, stored_run


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two models on three columns; the second column of the second model is wrong."""
    members = [replace(MODEL, id=name) for name in ("one", "two")]
    return stored_run(tmp_path, members, ["all"], ("two", "all"))


def test_the_verdicts_are_those_of_one_process(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = judged_models(run)
    monkeypatch.setattr(judging, "worth", lambda cells: 2)
    monkeypatch.setattr(judging, "judge_model", None)  # not in this process
    assert judged_models(run) == alone
    wrong = [cell.id for cell in alone.values() if cell.verdict is Verdict.WRONG]
    assert wrong == ["reading[two-b-all]"]
    assert len(alone) == 6


def test_a_damaged_observation_ends_it_by_its_name(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(judging, "worth", lambda cells: 2)
    path = run.group_folder("two", "c").cell("reading.all") / "observations.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConformanceError) as caught:
        judged_models(run)
    assert caught.value.path == path
