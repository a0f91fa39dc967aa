"""A column that refuses a model in float32 runs all of its cells in bf16."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from conformance.runner.planning import jobs, plan
from conformance.runner.scheduling import Planned
from conformance.runner.store import RunFolder, gathered_in
from conformance.runner.store.folder import RunPlan
from conformance.spec.checkpoints import Checkpoint
from conformance.spec.records import (
    Backend,
    Column,
    Model,
    Outcome,
    Precision,
    Source,
    Status,
)
from tests import ours

SCENARIOS = Path(__file__).parents[3] / "scenarios"
MODEL = Model("llama", "llama", (Source("tiny"),))
COLUMNS = (Column(Backend("hf", "hf")), Column(Backend("vllm-pp1", "vllm")))
CELLS = tuple(
    cell
    for cell in plan.cells([MODEL], [column.backend for column in COLUMNS], ours.scenarios())
    if cell.scenario in {"clean", "steering"}
)
KEYS = {cell.key for cell in CELLS}
#: By the plan, only steering runs in both precisions.
NARROW = frozenset(cell for cell in CELLS if cell.scenario == "clean")


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunFolder:
    built = Checkpoint(tmp_path, "digest", "tiny", "LlamaForCausalLM", layers=4, width=8)
    monkeypatch.setattr(jobs, "locate", lambda *given: built)
    run = RunFolder(tmp_path / "run")
    run.write_plan(
        RunPlan(
            *("run", "", "", (MODEL,), COLUMNS, CELLS),
            precisions=tuple(Precision),
            float32_only=tuple(cell.id for cell in NARROW),
        )
    )
    return run


def planned(run: RunFolder) -> Mapping[str, Planned]:
    made = jobs.planned_jobs(
        run, [MODEL], COLUMNS, CELLS, ours.scenarios(),
        folder=SCENARIOS, cache=run.path, precisions=tuple(Precision), float32_only=NARROW,
    )  # fmt: skip
    return {job.id.removeprefix("llama:"): job for job in made}


def end(run: RunFolder, column: str, precision: Precision, status: Status) -> None:
    for cell in CELLS:
        if cell.backend == column and (precision is Precision.FLOAT32 or status is Status.OK):
            run.write_cell("llama", gathered_in(column, precision), cell.key, Outcome(status), {})


def cases(job: Planned) -> set[str]:
    made = job.make()
    return {case.key for case in made.cases if case.key in KEYS} if made else set()


def in_both(job: Planned) -> set[str]:
    made = job.make()
    assert made is not None
    return {case.key for case in made.cases} & KEYS - set(made.float32_only)


def test_all_of_its_cells_run_in_bf16_and_so_does_the_reference(run: RunFolder) -> None:
    by_id = planned(run)
    assert by_id["vllm-pp1"].after == ("llama:vllm-pp1+float32",)
    steering = {cell.key for cell in CELLS} - {cell.key for cell in NARROW}
    assert in_both(by_id["reference"]) == steering

    end(run, "hf", Precision.FLOAT32, Status.OK)
    end(run, "vllm-pp1", Precision.FLOAT32, Status.UNSUPPORTED)
    assert cases(by_id["hf"]) == steering
    assert cases(by_id["vllm-pp1"]) == KEYS
    assert {cell.backend for cell in run.ungathered()} == {"hf", "vllm-pp1"}

    end(run, "hf", Precision.BF16, Status.OK)
    assert set(run.ungathered()) == {cell for cell in CELLS if cell.backend == "vllm-pp1"}
    end(run, "vllm-pp1", Precision.BF16, Status.OK)
    assert not run.ungathered()
    assert in_both(by_id["reference-again"]) == KEYS - steering
    # A resumed run's reference computes all of it at once.
    assert in_both(planned(run)["reference"]) == KEYS


def test_nothing_more_runs_where_single_cases_are_refused_or_bf16_is_too(run: RunFolder) -> None:
    by_id = planned(run)
    end(run, "vllm-pp1", Precision.FLOAT32, Status.UNSUPPORTED)
    assert by_id["reference-again"].make() is None
    [first, *_] = [cell for cell in CELLS if cell.backend == "vllm-pp1"]
    run.write_cell("llama", "vllm-pp1+float32", first.key, Outcome(Status.OK), {})
    assert cases(by_id["vllm-pp1"]) == KEYS - {cell.key for cell in NARROW}
