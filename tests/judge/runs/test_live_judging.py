"""A run is judged while it is still gathered, and in several processes, with the same verdicts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from conformance.commands.shared.execution import environment
from conformance.commands.shared.live_judging import LiveJudging
from conformance.errors import ConformanceError
from conformance.judge import runs as judging_runs
from conformance.judge.expectations import KnownGaps
from conformance.runner.scheduling.events import GroupFinished
from conformance.runner.store import RunFolder
from conformance.spec.records import CellResult, Environment, RunInfo, Thresholds, Verdict
from conformance.spec.scenario import discover
from tests.judge.runs.test_one_case import MODEL, judged_models, scenarios_of, stored_run

GROUPS = {f"{model}:{column}": model for model in ("one", "two") for column in "abc"}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """Two models on three columns; the second column of the second model is wrong."""
    members = [replace(MODEL, id=name) for name in ("one", "two")]
    return stored_run(tmp_path, members, ["all"], ("two", "all"))


def here() -> Environment:
    return environment(Thresholds())


def growing(run: RunFolder, told: list[str]) -> LiveJudging:
    scenarios = discover(scenarios_of(run))
    return LiveJudging(
        run, scenarios, GROUPS.items(), known=KnownGaps(), environment=here(), tell=told.append
    )


def ended(group: str) -> GroupFinished:
    return GroupFinished(group, ok=True, reason="", reused=False)


def while_gathered(run: RunFolder, told: list[str]) -> dict[str, CellResult]:
    """All groups end, those of the model "two" first."""
    with growing(run, told) as grows:
        for group in sorted(GROUPS, key=lambda group: GROUPS[group], reverse=True):
            grows(ended(group))
            for judging in list(grows._waiting.values()):
                judging.exception()
        return grows.judged()


def test_a_model_is_judged_when_its_last_group_has_ended(run: RunFolder) -> None:
    told: list[str] = []
    early = while_gathered(run, told)
    final = judged_models(run)
    assert early == {name: cell for name, cell in final.items() if cell.model == "two"}
    assert told[0] == "two: 1 unexpected in 1 model. 2 cells as expected."
    page = run.path / "index.html"
    assert told[1:] == [f"the page grows while the run goes on: {page}"]
    text = page.read_text(encoding="utf-8")
    assert "3 of 6 cells are judged so far" in text and 'http-equiv="refresh"' in text
    assert "1 unexpected in 1 model." in text and "✓</span>" not in text
    assert "cell=reading%5Btwo-b-all%5D" in text and "one-b-all" not in text


def test_the_rest_is_judged_at_the_end_and_nothing_twice(run, monkeypatch):
    early = while_gathered(run, [])
    final = judged_models(run)
    again: list[str] = []
    judge_model = judging_runs.run.judge_model

    def counted(folder, model, *rest):  # type: ignore[no-untyped-def]
        again.append(model.id)
        return judge_model(folder, model, *rest)

    monkeypatch.setattr(judging_runs.run, "judge_model", counted)
    scenarios = discover(scenarios_of(run))
    info = RunInfo("run", "", "", 0.0, "")
    results = judging_runs.judge_run(
        run, scenarios, Thresholds(), info=info, environment=here(), before=early
    )
    assert {cell.id: cell for cell in results.cells} == final
    assert again == ["one"]
    assert results.footer.judged == results.footer.planned == 6


def test_what_cannot_be_judged_early_is_left_for_the_end(run: RunFolder) -> None:
    path = run.group_folder("two", "c").cell("reading.all") / "observations.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    told: list[str] = []
    assert while_gathered(run, told) == {}
    assert told == []


def test_a_run_of_one_model_starts_no_other_process(run: RunFolder) -> None:
    scenarios = discover(scenarios_of(run))
    groups = [("two:a", "two")]
    with LiveJudging(run, scenarios, groups, known=None, environment=here(), tell=print) as grows:
        grows(ended("two:a"))
        assert grows._pool is None
        assert grows.judged() == {}


def test_the_verdicts_are_those_of_one_process(run, monkeypatch):
    alone = judged_models(run)
    monkeypatch.setattr(judging_runs.run, "worth", lambda cells: 2)
    monkeypatch.setattr(judging_runs.run, "judge_model", None)  # not in this process
    assert judged_models(run) == alone
    wrong = [cell.id for cell in alone.values() if cell.verdict is Verdict.WRONG]
    assert wrong == ["reading[two-b-all]"]
    assert len(alone) == 6


def test_a_damaged_observation_ends_it_by_its_name(run, monkeypatch):
    monkeypatch.setattr(judging_runs.run, "worth", lambda cells: 2)
    path = run.group_folder("two", "c").cell("reading.all") / "observations.safetensors"
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(ConformanceError) as caught:
        judged_models(run)
    assert caught.value.path == path
