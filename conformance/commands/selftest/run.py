"""Run a self-test: choose the faults, observe fault-free and faulty columns, judge, tabulate."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

import torch

from conformance.commands.selftest import controls, examine, faulty_columns, sensitivity, table
from conformance.commands.selftest.fault import ALL, CLIENTS, Fault
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.faulty_columns import Measured, Plan, plan
from conformance.commands.shared import execution
from conformance.errors import ConformanceError, ExitCode
from conformance.judge.expectations import Entry
from conformance.runner.planning import machine
from conformance.runner.planning.expression import matcher
from conformance.runner.planning.plan import cells
from conformance.runner.processes.parallel import side_by_side
from conformance.runner.scheduling import Event, TimeLimits
from conformance.runner.scheduling import run as run_jobs
from conformance.runner.store import ObservationCache, RunFolder, open_run
from conformance.runner.store.files import write_record
from conformance.spec.records import (
    Backend,
    Column,
    Model,
    Precision,
    Thresholds,
    injected,
    widened,
)
from conformance.spec.scenario import Scenario, discover, folders_of

#: The real model with massive activations, and one model for each of the three layouts of the
#: stream: two summands, one tensor, one with a batch axis.
MODELS = ("smollm2-135m", "llama", "gpt2", "gpt_neox")
#: Models with faults that those cannot have: a long context with windows, stretched rotary
#: positions, experts, latent attention, bf16 alone on vLLM, an entry of known.yaml that predicts.
#: Then more families without faults: no false alarms there.
SPECIAL_MODELS = ("gemma2-long", "phi3", "mixtral", "deepseek_v3", "qwen3_next", "bloom")
CLEAN_MODELS = ("gemma2", "falcon", "qwen3", "granite", "stablelm")
#: Two summands, and one tensor.
QUICK_MODELS = ("llama", "gpt2")
#: The number of variants per fault (the last ones of its places and doses).
QUICK_VARIANTS = 2
#: The cases whose detection limits are always measured, on the first model in a few trials: a write
#: at one token, a write at all, and a case that only reads.
QUICK_MEASURED = ("steering.middle-small-one", "ablation.middle", "read_all.pair")
QUICK_TRIALS = 2
#: The model on which the limits of every case are measured if all faults are injected.
MEASURED_MODEL = "llama"
#: With limits that are this many times as wide, the self-test must fail.
WIDER = 20.0


@dataclass(frozen=True)
class SelfTestRequest:
    """The request of the command line. `again` names a stored self-test to judge again, `resume`
    one to continue gathering, `blind` a gate that is broken on purpose. `sensitivity` measures the
    detection limits of every case on every model. A failure that an entry of `gaps` explains is not
    a false alarm. Models outside `general` get only faults that no other model has; None: all are
    in it.
    """

    models: tuple[Model, ...]
    backends: tuple[Backend, ...]
    scenarios: tuple[Path, ...]
    reports: Path
    thresholds: Thresholds
    expression: str = ""
    quick: bool = False
    jobs: int = 1
    again: str = ""
    resume: str = ""
    blind: str = ""
    gaps: tuple[Entry, ...] = ()
    sensitivity: bool = False
    general: tuple[str, ...] | None = None


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
        summary = run_jobs(
            faulty_columns.jobs(
                self.folder, self.plan, self.scenarios, folder=scenario_folders, cache=cache
            ),
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
        [model] = self.plan.models
        verdicts = examine.results(self.folder, self.plan, self.scenarios, self.thresholds)
        limits = [
            limit
            for measured in self.plan.measured
            for precision in Precision
            for limit in sensitivity.limits(
                self.folder,
                model,
                self.plan.backends,
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

    def blinded(self, control: controls.Control, sound: examine.Verdicts) -> injected.SelfTest:
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


def chosen_faults(expression: str, *, quick: bool) -> tuple[Fault, ...]:
    """Return the faults to inject; `-k` matches their ids."""
    matches = matcher(expression)
    return tuple(
        fault for fault in FAULTS.values() if matches(fault.id) and (fault.quick or not quick)
    )


def default_models(*, quick: bool) -> tuple[str, ...]:
    return QUICK_MODELS if quick else (*MODELS, *SPECIAL_MODELS, *CLEAN_MODELS)


def default_backends(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    return tuple(backend for backend in backends if backend.id in (*ALL, *CLIENTS))


def run(
    request: SelfTestRequest, cache: Path, on_event: Callable[[Event], None]
) -> tuple[RunFolder, injected.SelfTest | None]:
    """Run the self-test. Return the run's folder and the table; no table if it was interrupted."""
    begun = time.monotonic()
    control = controls.find(request.blind) if request.blind else None  # raises early
    scenarios = discover(request.scenarios)
    whole = _self_test(request, scenarios)
    folder = whole.folder
    if not request.again:
        places = folders_of(request.scenarios)
        if not whole.gather(places, cache=cache, jobs=request.jobs, on_event=on_event):
            return folder, None
        folder.finish()
    verdicts = whole.judge(request.jobs)
    if control is not None:
        return folder, whole.blinded(control, verdicts)
    outcome = whole.tabulate(verdicts, quick=request.quick, begun=begun)
    whole.write(outcome)
    execution.publish(folder, execution.judge(folder, scenarios, request.thresholds))
    return folder, outcome


def _self_test(request: SelfTestRequest, scenarios: Mapping[str, Scenario]) -> SelfTestRun:
    planned = _planned(request, scenarios)
    folder = _folder(request, planned)
    return SelfTestRun(folder, planned, scenarios, request.thresholds)


def _folder(request: SelfTestRequest, planned: Plan) -> RunFolder:
    """Return the folder of the named stored self-test, or of a new one. Raises ConformanceError for
    one that was begun with other options, because it may lack some of the cells to judge.
    """
    if not (request.again or request.resume):
        return execution.begin(
            request.reports,
            planned.models,
            tuple(map(Column, planned.backends)),
            planned.fault_free,
            scenarios=request.scenarios,
            thresholds=request.thresholds,
            jobs=request.jobs,
        )
    folder = open_run(request.reports, request.again or request.resume)
    stored, asked = folder.plan(), set(planned.fault_free)
    resumed = (stored.models, stored.cells) == (planned.models, planned.fault_free)
    if not (resumed if request.resume else asked <= set(stored.cells)):
        option = "--resume" if request.resume else "--again"
        raise ConformanceError(
            "this self-test was begun with other options",
            path=folder.path,
            remedy=f"give the same ones (--quick, -m, -b, -k), and {option} besides",
        )
    return folder


def controlled(request: SelfTestRequest) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Judge a stored self-test again and yield the bars that break: first with the intact judge,
    then with each gate broken on purpose, and with all limits `WIDER` times as wide. A control that
    breaks a bar on one model is not judged on the others. Detection limits come last.
    """
    whole = _self_test(request, discover(request.scenarios))
    sound = whole.judge(request.jobs)
    yield "", whole.tabulate(sound).broken
    wider = controls.Control(
        f"all limits × {WIDER:g}", thresholds=lambda thresholds: widened(thresholds, WIDER)
    )
    plans = [*(whole.plan.only(model, limits=False) for model in whole.plan.models), whole.plan]
    for control in (*controls.CONTROLS.values(), wider):
        tables = (replace(whole, plan=share).blinded(control, sound) for share in plans)
        yield control.gate, next((outcome.broken for outcome in tables if outcome.broken), ())


def _planned(request: SelfTestRequest, scenarios: Mapping[str, Scenario]) -> Plan:
    traced = [backend for backend in request.backends if backend.id not in CLIENTS]
    whole = traced and not request.quick
    fault_free = cells(request.models, traced, scenarios) if whole else ()
    planned = plan(
        chosen_faults(request.expression, quick=request.quick),
        request.models,
        request.backends,
        fault_free,
        most=QUICK_VARIANTS if request.quick else None,
        gaps=request.gaps,
        measured=_measured(request),
        whole=not request.expression and set(ALL) <= {backend.id for backend in request.backends},
        general=request.general,
    )
    missing = {cell.scenario for column in planned.faulty for cell in column.cells} - set(scenarios)
    if missing:
        raise ConformanceError(
            f"faults are injected into scenarios that are not there: {', '.join(sorted(missing))}",
            remedy="name the built-in ones: --scenarios built-in",
        )
    return planned


def _measured(request: SelfTestRequest) -> tuple[Measured, ...]:
    """Return every case of every model if requested, else a few cases of the first model, plus
    every case of one model if all faults are injected.
    """
    every = tuple(Measured(model.id) for model in request.models)
    if request.sensitivity:
        return every
    few = replace(every[0], cases=QUICK_MEASURED, trials=QUICK_TRIALS)
    if request.quick or request.expression:
        return (few,)
    one = tuple(measured for measured in every if measured.model == MEASURED_MODEL)
    return one if few.model == MEASURED_MODEL else (few, *one)


def exit_code(outcome: injected.SelfTest) -> ExitCode:
    """Return 3 if the harness failed, 1 if a bar does not hold, else 0."""
    if outcome.harness:
        return ExitCode.HARNESS
    return ExitCode.UNEXPECTED if outcome.broken else ExitCode.OK
