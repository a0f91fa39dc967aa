"""What the reference follows: the tokens that a column chose and the reference did not."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from torch import Tensor

from conformance.runner.planning import jobs, plan
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.checkpoints import Checkpoint
from conformance.spec.records import (
    Backend,
    Case,
    Column,
    Job,
    Model,
    Outcome,
    Precision,
    Site,
    Source,
    Status,
)
from tests import ours

SCENARIOS = Path(__file__).parents[3] / "scenarios"
MODEL = Model("llama", "llama", (Source("tiny"),))
COLUMNS = (Column(Backend("hf", "hf")), Column(Backend("vllm-pp1", "vllm")))
PRECISIONS = tuple(Precision)

#: What the reference generates, and what one column does in one precision.
TRUE, OTHER = (1, 2, 3), (1, 4, 3)


def generated(case: Case, ids: tuple[int, ...], prefix: str = "") -> dict[str, Tensor]:
    """The observations of a run without an edit that generates these ids for every prompt."""
    return {
        f"{prefix}{Site('tokens', prompt=prompt, step=step)}": torch.tensor([token])
        for prompt in range(len(case.prompts))
        for step, token in enumerate(ids)
    }


class Counting(RunFolder):
    """A run that counts how often observations are read, by the column's name."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.reads: Counter[tuple[str, str]] = Counter()

    def observations(self, model: str, backend: str, key: str) -> dict[str, Tensor]:
        self.reads[backend, key] += 1
        return super().observations(model, backend, key)


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    built = Checkpoint(tmp_path, "digest", "tiny", "LlamaForCausalLM", layers=4, width=8)
    monkeypatch.setattr(jobs, "locate", lambda *given: built)
    return Counting(tmp_path / "run")


def forced(run: Counting) -> Job | None:
    """The last job, after every column generated what the reference did but one in bf16."""
    scenarios = ours.scenarios()
    backends = [column.backend for column in COLUMNS]
    cells = [
        cell for cell in plan.cells([MODEL], backends, scenarios) if cell.scenario == "multigen"
    ]
    planned = jobs.planned_jobs(
        run, [MODEL], COLUMNS, cells, scenarios,
        folder=SCENARIOS, cache=run.path, precisions=PRECISIONS, lean=True,
    )  # fmt: skip
    asked = scenarios["multigen"].expand(4)
    ok = Outcome(Status.OK)
    for case in asked:
        run.write_cell(MODEL.id, "reference", case.key, ok, generated(case, TRUE, "truth|"))
        for column in COLUMNS:
            for precision in PRECISIONS:
                odd = column.id == "vllm-pp1" and precision is Precision.BF16
                ids = OTHER if odd else TRUE
                place = gathered_in(column.id, precision)
                run.write_cell(MODEL.id, place, case.key, ok, generated(case, ids))
    run.reads.clear()
    return planned[-1].make()


def test_the_tokens_of_the_one_column_that_chose_others_are_followed(run: Counting) -> None:
    job = forced(run)
    assert job is not None
    assert {case.scenario for case in job.cases} == {"multigen"}
    for case in job.cases:
        assert set(case.forced.values()) == {(OTHER,) * len(case.prompts)}


def test_the_references_observations_are_read_once_for_all_columns(run: Counting) -> None:
    """They are by far the largest: once for each of four groups was a tenth of a run's time."""
    forced(run)
    of_reference = {key: n for (place, key), n in run.reads.items() if place == "reference"}
    assert of_reference
    assert set(of_reference.values()) == {1}
    everywhere = {place for place, _ in run.reads}
    own = {gathered_in(column.id, each) for column in COLUMNS for each in PRECISIONS}
    assert everywhere == {"reference", *own}
