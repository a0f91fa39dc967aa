"""Models judged in processes of their own get the verdicts that they get in this one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.errors import ConformanceError
from conformance.judging_runs import models
from conformance.records import Cell, CellResult, Thresholds, Verdict
from conformance.scenario import discover
from conformance.store import RunFolder
from conformance.store.folder import RunPlan
from tests.judging_runs.test_one_case import COLUMNS, MODEL, candidate, observed

SOURCE = '''"""Reads."""
from conformance.scenario import scenario

@scenario()
def reading(lm, case): ...

@reading.reference
def _(model, case): ...
'''


def scenarios_of(folder: Path) -> Path:
    """A folder that no other test's modules are named after."""
    return folder / f"scenarios_{folder.name}"


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two models on two columns; the second column of the second model is wrong."""
    scenarios = scenarios_of(tmp_path)
    scenarios.mkdir()
    (scenarios / "reading.py").write_text(SOURCE)
    folder = RunFolder(tmp_path / "run")
    members = [replace(MODEL, id=name) for name in ("one", "two")]
    cells = [Cell(model.id, column.id, "reading", "all") for model in members for column in COLUMNS]
    for model in members:
        wrong = {0: torch.neg} if model.id == "two" else {}
        columns = {"a": candidate(), "b": candidate(6, wrong), "c": candidate(7)}
        observed(folder, "reading.all", columns, model=model)
    folder.write_plan(RunPlan("run", "", "", tuple(members), COLUMNS, tuple(cells), Thresholds()))
    return folder


def judged(run: RunFolder) -> dict[str, CellResult]:
    scenarios = discover(scenarios_of(run.path.parent))
    return models.judge_models(run, scenarios, Thresholds())


def test_the_verdicts_are_those_of_one_process(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = judged(run)
    monkeypatch.setattr(models, "worth", lambda cells: 2)
    monkeypatch.setattr(models, "judge_model", None)  # not in this process
    assert judged(run) == alone
    wrong = [cell.id for cell in alone.values() if cell.verdict is Verdict.WRONG]
    assert wrong == ["reading[two-b-all]"]
    assert len(alone) == 6


def test_a_damaged_observation_ends_it_by_its_name(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(models, "worth", lambda cells: 2)
    path = run.group_folder("two", "c").cell("reading.all") / "observations.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConformanceError) as caught:
        judged(run)
    assert caught.value.path == path
