"""What a run keeps of a judged model: nothing is lost, whatever happens on the way."""

from __future__ import annotations

import errno
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from conformance.commands.shared import execution
from conformance.commands.shared.execution import reopen_incomplete
from conformance.errors import ConformanceError
from conformance.judge.runs import reduce_judged
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, details, reduced_model
from conformance.spec.records import (
    CellResult,
    Finding,
    Group,
    Outcome,
    Status,
    Thresholds,
    Verdict,
    widened,
)
from conformance.spec.scenario import discover
from tests.judge.runs.test_one_case import (
    COLUMNS,
    MODEL,
    OK,
    candidate,
    judged_models,
    observed,
    scenarios_of,
    stored_run,
)


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """One model on three columns: one case is right on all of them, one is wrong on the second."""
    cases = ("right", "wrong")
    options = f'options={{"of": {cases}}}'
    return stored_run(tmp_path, [MODEL], cases, (MODEL.id, "wrong"), options, keep="failing")


def reduced(run: RunFolder, results: dict[str, CellResult] | None = None) -> None:
    reduce_judged(run, MODEL, COLUMNS, results or judged_models(run), Thresholds())


def tensors(run: RunFolder) -> set[str]:
    return {
        f"{path.parents[2].name}/{path.parent.name}"
        for path in run.path.glob(f"groups/*/*/cells/*/{reduced_model.OBSERVATIONS}")
    }


def test_tensors_stay_where_a_column_does_not_pass_and_verdicts_stay_everywhere(run):
    before, all_of_them = judged_models(run), tensors(run)
    reduced(run, before)
    assert tensors(run) == {name for name in all_of_them if "right" not in name}
    assert {name for name in tensors(run) if "wrong" in name}
    after = judged_models(run)
    assert after == before
    assert [cell.verdict for cell in after.values()].count(Verdict.WRONG) == 1


def test_what_known_yaml_explains_keeps_its_figures_alone(run):
    before = judged_models(run)
    marked = {
        name: replace(cell, finding=Finding.KNOWN, expected="a gap", gap=0)
        if cell.verdict is Verdict.WRONG
        else cell
        for name, cell in before.items()
    }
    reduced(run, marked)
    assert tensors(run) == set()
    # The entry may have changed by then: what is stored does not say what was expected.
    assert judged_models(run) == before


def test_a_dropped_observation_says_what_it_would_take(run):
    reduced(run)
    with pytest.raises(reduced_model.NotKept, match="--keep all"):
        run.observations(MODEL.id, "a", "reading.right")
    assert run.observations(MODEL.id, "a", "reading.wrong")
    run.group_folder(MODEL.id, "a").cell("reading.wrong").joinpath(
        reduced_model.OBSERVATIONS
    ).unlink()
    with pytest.raises(ConformanceError) as lost:  # that one was not dropped: it is lost
        run.observations(MODEL.id, "a", "reading.wrong")
    assert not isinstance(lost.value, reduced_model.NotKept)


def test_other_limits_need_the_tensors(run):
    known, wide = discover(scenarios_of(run)), widened(Thresholds(), 20.0)
    assert execution.judge(run, known, wide).environment.thresholds == wide
    reduced(run)
    assert execution.judge(run, known, Thresholds()).footer.judged == 6
    with pytest.raises(reduced_model.NotKept, match="by other limits"):
        execution.judge(run, known, wide)


def test_a_case_without_an_outcome_is_reopened_in_every_column(run):
    reduced(run)
    reopen_incomplete(run, run.plan())
    assert reduced_model.read(run, MODEL.id).reopened == ()  # every outcome is there
    kept = run.group_folder(MODEL.id, "a").cell("reading.wrong") / "outcome.json"
    run.group_folder(MODEL.id, "b").drop_cell("reading.right")
    assert [cell.backend for cell in run.ungathered()] == ["b"]
    reopen_incomplete(run, run.plan())
    assert [cell.backend for cell in run.ungathered()] == ["a", "b", "c"]
    assert run.outcome(MODEL.id, REFERENCE.id, "reading.right") is None
    assert kept.is_file()
    columns = {"a": candidate(), "b": candidate(6, {0: torch.neg}), "c": candidate(7)}
    observed(run, "reading.right", columns)
    after = judged_models(run)
    assert after[f"reading[{MODEL.id}-b-right]"].verdict is Verdict.WRONG
    # An interrupted run goes on with the case, and one that has ended keeps its tensors.
    reopen_incomplete(run, run.plan())
    assert reduced_model.read(run, MODEL.id).reopened == ("reading.right",)
    reduced(run, after)
    assert reduced_model.read(run, MODEL.id).reopened == ()
    assert {name for name in tensors(run) if "right" in name}
    assert judged_models(run) == after


def test_with_other_versions_a_model_is_gathered_as_a_whole(run):
    reduced(run)
    run.group_folder(MODEL.id, "b").drop_cell("reading.wrong")
    run.group_folder(MODEL.id, "a").write_group(Group(MODEL.id, "a", versions={"vllm": "0.1"}))
    reopen_incomplete(run, run.plan())
    assert reduced_model.read(run, MODEL.id) is None
    assert {cell.key for cell in run.ungathered()} == {"reading.right", "reading.wrong"}


def test_a_process_that_ends_while_it_removes_loses_nothing(run, monkeypatch):
    before, calls = judged_models(run), iter(range(9))
    unlink = Path.unlink

    def killed(path: Path, *, missing_ok: bool = False) -> None:
        if path.name == reduced_model.OBSERVATIONS and next(calls) == 2:
            raise KeyboardInterrupt
        unlink(path, missing_ok=missing_ok)

    monkeypatch.setattr(Path, "unlink", killed)
    with pytest.raises(KeyboardInterrupt):
        reduced(run, before)
    monkeypatch.undo()
    assert {name for name in tensors(run) if "right" in name}  # some are still there
    assert judged_models(run) == before
    reduced_model.finish(run, MODEL.id)
    assert not {name for name in tensors(run) if "right" in name}
    assert judged_models(run) == before


@pytest.mark.parametrize("what", ["details", "record"])
def test_a_full_disk_removes_nothing(run, monkeypatch, what):
    before, all_of_them = judged_models(run), tensors(run)

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if what == "details":
        monkeypatch.setattr(details, "write", full)
    else:
        monkeypatch.setattr(reduced_model, "write_record", full)
    with pytest.raises(OSError, match="No space"):
        reduced(run, before)
    assert tensors(run) == all_of_them
    assert reduced_model.read(run, MODEL.id) is None
    assert judged_models(run) == before


def test_a_model_that_is_not_settled_keeps_everything(run):
    cell = run.group_folder(MODEL.id, "a").cell("reading.right")
    (cell / "outcome.json").unlink()
    all_of_them = tensors(run)
    results = judged_models(run)
    assert any(one.verdict is Verdict.MISSING for one in results.values())
    reduced(run, results)
    assert tensors(run) == all_of_them


def test_an_observation_that_is_missing_is_a_verdict_like_another(run):
    """The cell came to its end: its case keeps its tensors, the others need not."""
    values = run.observations(MODEL.id, "b", "reading.wrong")
    values.popitem()
    run.write_cell(MODEL.id, "b", "reading.wrong", OK, values)
    before = judged_models(run)
    assert before[f"reading[{MODEL.id}-b-wrong]"].verdict is Verdict.MISSING
    reduced(run, before)
    assert tensors(run) and not {one for one in tensors(run) if "right" in one}
    assert judged_models(run) == before


def test_a_refusal_needs_no_tensors(run):
    refused = Outcome(Status.UNSUPPORTED, reason="no")
    for column in COLUMNS:
        run.write_cell(MODEL.id, column.id, "reading.wrong", refused, {})
    reduced(run)
    assert not tensors(run)


def test_the_files_of_the_cache_are_untouched(run, tmp_path):
    source = run.group_folder(MODEL.id, "a").cell("reading.right") / reduced_model.OBSERVATIONS
    linked = tmp_path / "linked"
    linked.hardlink_to(source)
    content = linked.read_bytes()
    reduced(run)
    assert not source.exists() and linked.read_bytes() == content


def test_results_are_small_and_read_whole(run):
    known = discover(scenarios_of(run))
    results = execution.judge(run, known, Thresholds())
    run.write_results(results)
    assert run.results() == results
    text = (run.path / "results.json").read_text()
    passing = [cell for cell in results.cells if cell.verdict.passes]
    assert passing and all(cell.observations for cell in passing)
    assert text.count('"site"') < sum(len(cell.observations) for cell in results.cells)
    (run.path / details.DETAILS).write_bytes(b"of another judgement")
    with pytest.raises(ConformanceError, match=r"not the one of results\.json"):
        run.results()


def test_every_figure_comes_back(run, tmp_path):
    [cell, *_] = judged_models(run).values()
    first = cell.observations[0]
    odd = replace(
        first,
        q_med=None,
        q_max=float("inf"),
        ratios=(0.0, float("inf")),
        extra={"a": [1, "b"], "c": {"d": None}},
        message="Überlauf\n",
    )
    changed = replace(cell, observations=(odd, first))
    path = tmp_path / "figures.parquet"
    small, digest = details.write([changed], path)
    assert not small[0].observations
    assert details.read(small, path, digest) == (changed,)
