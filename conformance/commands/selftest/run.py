"""Run a self-test: fault-free and faulty columns → observations → the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from conformance.commands.selftest import examine, faulty_columns, sensitivity, table
from conformance.commands.selftest.controls import Control
from conformance.commands.selftest.fault import Fault
from conformance.errors import ConformanceError
from conformance.judge.expectations import Entry
from conformance.judge.expectations.assess import explains
from conformance.judge.expectations.conditions import Where, holds, where_in
from conformance.judge.runs.one_model import model_info
from conformance.runner.planning import machine
from conformance.runner.processes.parallel import side_by_side
from conformance.runner.scheduling import Event, TimeLimits
from conformance.runner.scheduling import run as run_jobs
from conformance.runner.store import ObservationCache, RunFolder, gathered_in
from conformance.runner.store.files import write_record
from conformance.spec.records import (
    Backend,
    Cell,
    CellResult,
    Group,
    Model,
    Precision,
    Thresholds,
    injected,
)
from conformance.spec.scenario import Scenario, discover


@dataclass(frozen=True)
class Measured:
    """The cases of a model whose detection limits are measured (None: all of them)."""

    model: str
    cases: tuple[str, ...] | None = None
    trials: int = sensitivity.TRIALS


@dataclass(frozen=True)
class Plan:
    """What a self-test injects, and which detection limits it measures. A `whole` one has every
    fault and backend, and checks the share of faults inside engine, nnsight or relay.
    """

    models: tuple[Model, ...]
    backends: tuple[Backend, ...]
    faulty: tuple[faulty_columns.FaultyColumn, ...]
    fault_free: tuple[Cell, ...]
    gaps: tuple[Entry, ...] = ()
    measured: tuple[Measured, ...] = ()
    whole: bool = False

    def only(self, model: Model, *, limits: bool = True) -> Plan:
        """Return the part for one model, without its detection limits if `limits` is false."""
        faulty = tuple(column for column in self.faulty if column.model == model.id)
        fault_free = tuple(cell for cell in self.fault_free if cell.model == model.id)
        measured = tuple(one for one in self.measured if limits and one.model == model.id)
        return Plan((model,), self.backends, faulty, fault_free, self.gaps, measured)

    def excusing(self, run: RunFolder) -> Callable[[Cell, CellResult], bool]:
        """Return whether a result of a cell is a known gap under the conditions of this run. An
        error of the harness is never excused.
        """
        where = {
            (model.id, backend.id): _where(run, model, backend)
            for model in self.models
            for backend in self.backends
        }

        def excused(cell: Cell, result: CellResult) -> bool:
            return not result.harness and any(
                cell in gap
                and holds(gap.when, where[cell.model, cell.backend])
                and explains(gap, result)
                for gap in self.gaps
            )

        return excused

    def sound(self, run: RunFolder, by_cell: Mapping[str, CellResult]) -> tuple[Cell, ...]:
        """Return the cells that must not be flagged: the fault-free ones but for known gaps."""
        excused = self.excusing(run)
        return tuple(cell for cell in self.fault_free if not excused(cell, by_cell[cell.id]))


def _where(run: RunFolder, model: Model, backend: Backend) -> Where:
    """Return the conditions of a fault-free column in bf16; an engine may refuse float32."""
    group = run.group(model.id, gathered_in(backend.id, Precision.BF16))
    config = model_info(run, model).config
    return where_in(group or Group(model.id, backend.id), model.architecture, config)


def plan(
    faults: Sequence[Fault],
    models: Sequence[Model],
    backends: Sequence[Backend],
    fault_free: Sequence[Cell] = (),
    *,
    most: int | None = None,
    gaps: Sequence[Entry] = (),
    measured: tuple[Measured, ...] = (),
    whole: bool = False,
    general: Sequence[str] | None = None,
) -> Plan:
    """Return the plan with every faulty column; `fault_free` cells are added. Models outside
    `general` (None: all are in it) get only faults that no other model has.
    """
    faulty = tuple(
        column
        for model, own in faulty_columns.shared_out(faults, models, general)
        for column in faulty_columns.columns(own, model, backends, most)
    )
    if not faulty:
        raise ConformanceError("no fault is left to inject", remedy="see -k, -m and -b")
    corresponding = faulty_columns.fault_free_cells(faulty, models, backends)
    everything = tuple(dict.fromkeys((*corresponding, *fault_free)))
    used = {cell.backend for cell in everything}
    columns = tuple(backend for backend in backends if backend.id in used)
    return Plan(tuple(models), columns, faulty, everything, tuple(gaps), measured, whole)


@dataclass(frozen=True)
class SelfTestRun:
    """A self-test: its folder, its plan and what it is judged by."""

    folder: RunFolder
    plan: Plan
    scenarios: Mapping[str, Scenario]
    thresholds: Thresholds

    def gather(
        self,
        scenario_folders: Path | tuple[Path, ...],
        *,
        cache: Path,
        jobs: int,
        on_event: Callable[[Event], None],
    ) -> bool:
        """Gather all observations. Return False if interrupted."""
        members = faulty_columns.jobs(
            self.folder,
            self.plan.faulty,
            self.plan.models,
            self.plan.backends,
            self.plan.fault_free,
            self.scenarios,
            folder=scenario_folders,
            cache=cache,
        )
        summary = run_jobs(
            members,
            logs=self.folder.path / "zygotes",
            jobs=jobs,
            limits=TimeLimits(),
            device=machine.conditions(),
            cache=ObservationCache(cache / "observations"),
            on_event=on_event,
        )
        return not summary.interrupted

    def judge(self, jobs: int = 1) -> examine.Verdicts:
        """Return the verdict on every cell, fault-free or faulty. With more `jobs`, the models are
        judged in parallel processes; no gate can be broken there.
        """
        plans = [self.plan.only(model) for model in self.plan.models]
        processes = min(jobs, len(plans))
        verdicts: Iterable[examine.Verdicts]
        if processes > 1:
            verdicts = side_by_side(
                _judge_model,
                [(self.folder.path, share, self.thresholds) for share in plans],
                processes=processes,
                begin=_begin,
                begin_with=(tuple(sorted({one.path.parent for one in self.scenarios.values()})),),
            )
        else:
            torch.set_num_threads(1)
            verdicts = (replace(self, plan=share).judge_model() for share in plans)
        return examine.merged(verdicts)

    def judge_model(self) -> examine.Verdicts:
        """Judge a plan of one model."""
        plan, [model] = self.plan, self.plan.models
        verdicts = examine.results(
            self.folder,
            model,
            plan.backends,
            plan.faulty,
            plan.fault_free,
            self.scenarios,
            self.thresholds,
        )
        limits = [
            limit
            for measured in plan.measured
            for precision in (Precision.FLOAT32, Precision.BF16)
            for limit in sensitivity.limits(
                self.folder,
                model,
                plan.backends,
                self.scenarios,
                self.thresholds,
                precision=precision,
                trials=measured.trials,
                cases=measured.cases,
            )
        ]
        return replace(verdicts, limits=limits)

    def tabulate(
        self,
        verdicts: examine.Verdicts,
        *,
        sound: examine.Verdicts | None = None,
        quick: bool = False,
        begun: float | None = None,
    ) -> injected.SelfTest:
        """Return the table. `sound` are the intact judge's verdicts, if `verdicts` are not."""
        unbroken = sound or verdicts
        excused = self.plan.excusing(self.folder)
        rows = examine.rows(self.folder, self.plan.faulty, verdicts, unbroken, excused)
        fault_free = self.plan.sound(self.folder, unbroken.cells)
        alarms = examine.alarms(verdicts.cells, fault_free)
        limits = tuple(verdicts.limits)
        totals = table.totals(rows, len(fault_free), len(alarms))
        names = (*(row.id for row in rows), *(cell.id for cell in fault_free))
        return injected.SelfTest(
            schema=injected.SCHEMA,
            run=self.folder.id,
            date=datetime.now(UTC).isoformat(timespec="seconds"),
            quick=quick,
            thresholds=self.thresholds.source,
            rows=tuple(rows),
            alarms=tuple(alarms),
            totals=totals,
            broken=table.bars(rows, totals, limits, whole=self.plan.whole),
            limits=limits,
            seconds=time.monotonic() - begun if begun is not None else 0.0,
            harness=tuple(name for name in names if verdicts.cells[name].harness),
        )

    def blinded(self, control: Control, sound: examine.Verdicts) -> injected.SelfTest:
        """Return the table of a judge with one gate broken on purpose; a bar must break.

        `sound` are the intact judge's verdicts; they decide which faults are below the bound.
        """
        with control.broken():
            loose = replace(self, thresholds=control.thresholds(self.thresholds))
            return loose.tabulate(loose.judge(), sound=sound)

    def write(self, outcome: injected.SelfTest) -> None:
        """Write the table into the run's folder and next to all runs, whose pages show the last."""
        for folder in (self.folder.path, self.folder.path.parent):
            write_record(folder / injected.FILE, outcome)


#: The scenarios of a judging process.
_scenarios: dict[str, Scenario] = {}


def _begin(folders: tuple[Path, ...]) -> None:
    """Import the scenarios again: they contain functions, which cannot be sent through a pipe."""
    torch.set_num_threads(1)
    _scenarios.update(discover(folders))


def _judge_model(path: Path, share: Plan, thresholds: Thresholds) -> examine.Verdicts:
    """Judge the part of one model in a process of its own."""
    return SelfTestRun(RunFolder(path), share, _scenarios, thresholds).judge_model()
