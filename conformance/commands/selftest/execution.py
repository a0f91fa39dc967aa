"""Run `conformance selftest`: choose the faults, run, judge and write the table."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from conformance.commands.selftest import controls
from conformance.commands.selftest import run as injections
from conformance.commands.selftest.fault import ALL, CLIENTS, Fault
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.shared import execution
from conformance.errors import ConformanceError, ExitCode
from conformance.judge.expectations import Entry
from conformance.runner.planning import plan
from conformance.runner.scheduling import Event
from conformance.runner.store import RunFolder, open_run
from conformance.spec.records import Backend, Column, Model, Thresholds, widened
from conformance.spec.records.injected import SelfTest
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


def chosen_faults(expression: str, *, quick: bool) -> tuple[Fault, ...]:
    """Return the faults to inject; `-k` matches their ids."""
    matches = plan.matcher(expression)
    return tuple(
        fault for fault in FAULTS.values() if matches(fault.id) and (fault.quick or not quick)
    )


def default_models(*, quick: bool) -> tuple[str, ...]:
    return QUICK_MODELS if quick else (*MODELS, *SPECIAL_MODELS, *CLEAN_MODELS)


def default_backends(backends: Sequence[Backend]) -> tuple[Backend, ...]:
    return tuple(backend for backend in backends if backend.id in (*ALL, *CLIENTS))


def run(
    request: SelfTestRequest, cache: Path, on_event: Callable[[Event], None]
) -> tuple[RunFolder, SelfTest | None]:
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


def _self_test(
    request: SelfTestRequest, scenarios: Mapping[str, Scenario]
) -> injections.SelfTestRun:
    planned = _planned(request, scenarios)
    folder = _folder(request, planned)
    return injections.SelfTestRun(folder, planned, scenarios, request.thresholds)


def _folder(request: SelfTestRequest, planned: injections.Plan) -> RunFolder:
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


def _planned(request: SelfTestRequest, scenarios: Mapping[str, Scenario]) -> injections.Plan:
    traced = [backend for backend in request.backends if backend.id not in CLIENTS]
    whole = traced and not request.quick
    fault_free = plan.cells(request.models, traced, scenarios) if whole else ()
    planned = injections.plan(
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
    _check_scenarios(planned, scenarios)
    return planned


def _measured(request: SelfTestRequest) -> tuple[injections.Measured, ...]:
    """Return every case of every model if requested, else a few cases of the first model, plus
    every case of one model if all faults are injected.
    """
    every = tuple(injections.Measured(model.id) for model in request.models)
    if request.sensitivity:
        return every
    few = replace(every[0], cases=QUICK_MEASURED, trials=QUICK_TRIALS)
    if request.quick or request.expression:
        return (few,)
    one = tuple(measured for measured in every if measured.model == MEASURED_MODEL)
    return one if few.model == MEASURED_MODEL else (few, *one)


def _check_scenarios(planned: injections.Plan, scenarios: Mapping[str, Scenario]) -> None:
    """Raise ConformanceError if a fault is injected into a scenario that does not exist."""
    injected = {cell.scenario for column in planned.faulty for cell in column.cells}
    if absent := sorted(injected - scenarios.keys()):
        raise ConformanceError(
            f"faults are injected into scenarios that are not there: {', '.join(absent)}",
            remedy="name the built-in ones: --scenarios built-in",
        )


def exit_code(outcome: SelfTest) -> ExitCode:
    """Return 3 if the harness failed, 1 if a bar does not hold, else 0."""
    if outcome.harness:
        return ExitCode.HARNESS
    return ExitCode.UNEXPECTED if outcome.broken else ExitCode.OK
