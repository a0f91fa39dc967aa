"""One batch: programs as the scenarios of a run, gathered and judged like any other run."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property
from pathlib import Path

import torch

from conformance.commands.fuzz.shrinking import Shrinking
from conformance.judge.runs.one_model import judge_model
from conformance.runner.planning.jobs import planned_jobs
from conformance.runner.scheduling import Planned, TimeLimits
from conformance.runner.store import RunFolder, RunPlan, create_run
from conformance.spec.programs import Program, text
from conformance.spec.records import Backend, Cell, CellResult, Column, Model, Precision, Thresholds
from conformance.spec.scenario import Scenario, discover

#: Every program is one case.
CASE = "all"
#: A hanging program is stopped after this time.
LIMITS = TimeLimits(cell=40.0)


@dataclass(frozen=True)
class ProgramTrial:
    """A program to run on these backends. `work` is the one that it may be a smaller form of, None
    if it was drawn or comes from the corpus.
    """

    program: Program
    backends: tuple[Backend, ...]
    work: Shrinking | None = None


@dataclass(frozen=True, eq=False)
class ProgramBatch:
    """Programs for one model that share a load of each engine."""

    model: Model
    trials: tuple[ProgramTrial, ...]
    precisions: tuple[Precision, ...]
    run: RunFolder
    scenarios: Mapping[str, Scenario]
    folder: Path
    cache: Path

    @property
    def columns(self) -> tuple[Column, ...]:
        by_id = {backend.id: backend for trial in self.trials for backend in trial.backends}
        return tuple(map(Column, by_id.values()))

    @property
    def cells(self) -> tuple[Cell, ...]:
        return tuple(
            dict.fromkeys(
                Cell(self.model.id, backend.id, trial.program.name, CASE)
                for trial in self.trials
                for backend in trial.backends
            )
        )

    @cached_property
    def planned(self) -> dict[str, Planned]:
        """The batch's jobs by name: `reference`, `vllm-pp1+float32`, …"""
        jobs = planned_jobs(
            self.run,
            [self.model],
            self.columns,
            self.cells,
            self.scenarios,
            folder=self.folder,
            cache=self.cache,
            precisions=self.precisions,
            lean=True,
        )
        return {job.id.partition(":")[2]: job for job in jobs}

    def judged(self) -> dict[str, CellResult]:
        """Return the verdicts by cell id."""
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        try:
            return judge_model(
                self.run,
                self.model,
                self.columns,
                self.cells,
                self.scenarios,
                Thresholds(),
                self.precisions,
            )
        finally:
            torch.set_num_threads(threads)

    def forget(self) -> None:
        """Remove the observations: thousands of programs would fill a disk."""
        shutil.rmtree(self.run.path, ignore_errors=True)


def begin(
    place: Path,
    model: Model,
    trials: Sequence[ProgramTrial],
    *,
    precisions: Sequence[Precision],
    cache: Path,
) -> ProgramBatch:
    """Create a batch with its folder, its scenario files and its plan."""
    now = datetime.now(UTC)
    run = create_run(place, now)
    # The name must be a valid package name, and unique.
    folder = run.path / f"programs_{run.id.replace('-', '_')}"
    folder.mkdir()
    for name, program in {trial.program.name: trial.program for trial in trials}.items():
        (folder / f"{name}.py").write_text(text(program), encoding="utf-8")
    given = (model, tuple(trials), tuple(precisions))
    batch = ProgramBatch(*given, run, discover(folder), folder, cache)
    run.write_plan(
        RunPlan(
            run=run.id,
            started=now.isoformat(timespec="seconds"),
            command="conformance fuzz",
            models=(model,),
            columns=batch.columns,
            cells=batch.cells,
            thresholds=Thresholds(),
            precisions=batch.precisions,
            scenarios=str(folder),
        )
    )
    return batch
