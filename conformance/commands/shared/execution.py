"""Run `conformance run`: plan → jobs → observations → verdicts → report.

Nothing is lost on the way: the plan is saved first and every observation at once, and an
interrupted run continues where it stopped.
"""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Literal

import torch

from conformance.commands.shared.live_judging import LiveJudging
from conformance.judge import runs as judging_runs
from conformance.judge.expectations import KnownGaps, add_exit_code, mark_findings
from conformance.judge.runs import reduce_judged
from conformance.report import html, table_files
from conformance.report.diff import changes_since_last
from conformance.runner.planning import machine
from conformance.runner.planning.jobs import launch, planned_jobs
from conformance.runner.scheduling import Allocate, Event, RunSummary, TimeLimits
from conformance.runner.scheduling import run as run_jobs
from conformance.runner.store import (
    ObservationCache,
    RunFolder,
    RunPlan,
    ask_versions,
    create_run,
    gathered_in,
    point_latest,
    read_versions,
    reduced_model,
)
from conformance.runner.store.files import read_record, write_record
from conformance.spec.records import (
    Cell,
    CellResult,
    Column,
    Environment,
    Group,
    Model,
    Outcome,
    Precision,
    Results,
    RunInfo,
    Selection,
    Status,
    Thresholds,
)
from conformance.spec.scenario import Places, Scenario, as_planned, folders_of

#: Next to plan.json: statistics of the gathering, for judging again later.
INFO = "run.json"


def begin(
    reports: Path,
    models: Sequence[Model],
    columns: Sequence[Column],
    cells: Sequence[Cell],
    *,
    scenarios: Places,
    thresholds: Thresholds,
    jobs: int,
    precisions: Sequence[Precision] = tuple(Precision),
    float32_only: Collection[Cell] = (),
    selection: Selection = Selection(),  # noqa: B008 - a frozen record
    keep: Literal["all", "failing"] = "all",
) -> RunFolder:
    """Create a run folder with its plan. Every cell is gathered in each of the `precisions`. Cells
    that are `float32_only` are gathered in float32 alone, if it is one of them. Those of a column
    without an environment are recorded as untestable.
    """
    narrow = float32_only if Precision.FLOAT32 in precisions else ()
    now = datetime.now(UTC)
    run = create_run(reports, now)
    plan = RunPlan(
        run=run.id,
        started=now.isoformat(timespec="seconds"),
        command=shlex.join(["conformance", *sys.argv[1:]]),
        models=tuple(models),
        columns=tuple(columns),
        cells=tuple(cells),
        thresholds=thresholds,
        precisions=tuple(precisions),
        float32_only=tuple(sorted(cell.id for cell in narrow)),
        selection=selection,
        keep=keep,
        scenarios=as_planned(scenarios),
        jobs=jobs,
    )
    run.write_plan(without_unused(plan))
    run.begin()
    point_latest(run)
    for column, precision in product((one for one in columns if one.untestable), precisions):
        outcome = Outcome(Status.UNTESTABLE, reason=column.untestable)
        folder = gathered_in(column.id, precision)
        own = [cell for cell in cells if cell.backend == column.id]
        for cell in own:
            run.write_cell(cell.model, folder, cell.key, outcome, {})
        for model in dict.fromkeys(cell.model for cell in own):
            group = Group(model, column.id, precision, outcome.status, outcome.reason)
            run.group_folder(model, folder).write_group(group)
    return run


def without_unused(plan: RunPlan) -> RunPlan:
    """Return the plan without the models and columns that have no cells."""
    models = {cell.model for cell in plan.cells}
    columns = {cell.backend for cell in plan.cells}
    return replace(
        plan,
        models=tuple(model for model in plan.models if model.id in models),
        columns=tuple(column for column in plan.columns if column.id in columns),
    )


def execute(
    run: RunFolder,
    plan: RunPlan,
    scenarios: Mapping[str, Scenario],
    *,
    cache: Path,
    limits: TimeLimits,
    jobs: int,
    on_event: Callable[[Event], None],
    observations: Path | None = None,
    known: KnownGaps | None = None,
    tell: Callable[[str], None] = lambda _: None,
    allocate: Allocate | None = None,
) -> tuple[Results, Path] | None:
    """Gather the missing observations of the run's `plan`, judge and report. Return the results and
    the page's path, or None if interrupted. A model is judged as soon as its last group has ended,
    and `tell` receives a line about it.

    `observations` is the cache of finished ones between runs, by default in `cache`. Failures that
    are `known` are marked and do not fail the run. `allocate` runs groups on other machines. Ctrl-C
    ends the gathering; its observations are kept, and the run can be resumed.
    """
    run.begin()
    reopen_incomplete(run, plan)
    reduced = reduced_model.reduced(run, [model.id for model in plan.models])
    settled = {model for model, kept in reduced.items() if not kept.reopened}
    planned = planned_jobs(
        run,
        plan.models,
        plan.columns,
        [cell for cell in plan.cells if cell.model not in settled],
        scenarios,
        folder=folders_of(plan.scenarios),
        cache=cache,
        precisions=plan.precisions,
        float32_only=plan.only_float32(),
        settled=[
            cell
            for cell in plan.cells
            if cell.model in reduced and cell.key not in reduced[cell.model].reopened
        ],
    )
    models = {job.id: job.id.partition(":")[0] for job in planned}
    with LiveJudging(
        run,
        scenarios,
        {job: model for job, model in models.items() if model not in reduced},
        known=known,
        environment=environment(plan.thresholds),
        tell=tell,
    ) as growing:

        def heard(event: Event) -> None:
            on_event(event)
            growing(event)

        summary = run_jobs(
            planned,
            logs=run.path / "zygotes",
            jobs=jobs,
            limits=limits,
            device=machine.conditions(),
            cache=ObservationCache(observations or cache / "observations"),
            on_event=heard,
            allocate=allocate,
        )
        if summary.interrupted:
            return None
        judged = growing.judged()
    keep_info(run, summary)
    run.finish()
    before = {**reduced_model.cells(run, settled), **judged}
    results = judge(run, scenarios, plan.thresholds, known, before=before)
    if plan.keep == "failing":
        by_id = {cell.id: cell for cell in results.cells}
        for model in plan.models:
            reduce_judged(run, model, plan.columns, by_id, plan.thresholds)
    return results, publish(run, results)


def reopen_incomplete(run: RunFolder, plan: RunPlan) -> None:
    """Reopen the cases of reduced models that lack an outcome, for a resumed run to repeat.

    A reduced model has verdicts but no tensors of passing cases. If the outcome of a cell was
    removed, it cannot be judged alone: its case is repeated in every column. If other versions are
    installed now, all cases of the model are: its groups have one set of versions. Raises
    ConformanceError if an interpreter does not report its versions.
    """
    reduced = reduced_model.reduced(run, [model.id for model in plan.models])
    nowhere = {column.id for column in plan.columns if column.untestable}
    missing = [cell for cell in run.ungathered() if cell.backend not in nowhere] if reduced else []
    for model, kept in reduced.items():
        cases = {*kept.reopened, *(cell.key for cell in missing if cell.model == model)}
        if not cases:
            continue
        planned = {cell.key for cell in plan.cells if cell.model == model}
        settled = set() if _have_versions_changed(run, plan, model) else planned - cases
        reduced_model.reopen(run, model, cases, settled)


def _have_versions_changed(run: RunFolder, plan: RunPlan, model: str) -> bool:
    """Return whether a group of the model ran with versions other than its interpreter has now."""
    pythons = {column.id: launch(column).python for column in plan.columns if not column.untestable}
    groups = [run.group(model, folder) for name, folder in run.groups() if name == model]
    return any(
        dict(group.versions) != dict(ask_versions(pythons.get(group.backend, Path(sys.executable))))
        for group in groups
        if group is not None and group.versions
    )


def start_again(
    reports: Path,
    plan: RunPlan,
    scenarios: Mapping[str, Scenario],
    *,
    fresh: bool,
    cache: Path,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
) -> tuple[Results, Path] | None:
    """Start a run in `reports` with the contents and conditions of a plan. With `fresh` nothing
    comes from the observation cache, not even the reference.
    """
    run = begin(
        reports,
        plan.models,
        plan.columns,
        plan.cells,
        scenarios=plan.scenarios,
        thresholds=plan.thresholds,
        precisions=plan.precisions,
        float32_only=plan.only_float32() & set(plan.cells),
        selection=plan.selection,
        keep=plan.keep,
        jobs=plan.jobs,
    )
    return execute(
        run,
        run.plan(),
        scenarios,
        cache=cache,
        limits=limits,
        jobs=plan.jobs,
        on_event=on_event,
        observations=run.path / "observations" if fresh else None,
    )


def judge(
    run: RunFolder,
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    known: KnownGaps | None = None,
    *,
    strict_numerics: bool = False,
    before: Mapping[str, CellResult] | None = None,
) -> Results:
    """Judge a stored run without starting an engine. Failures that are `known` are marked. With
    `strict_numerics`, cells that drift in bf16 fail the run. Verdicts from `before` are reused, and
    so are the verdicts of cells whose tensors were not kept.

    Raises ConformanceError for an unfinished run, and for other thresholds than those used for
    cells whose tensors were not kept.
    """
    run.check_finished()
    found = reduced_model.reduced(run, [model.id for model in run.plan().models])
    reduced_model.check_thresholds(found, thresholds)
    # With thousands of small operations, several threads take five times as long as one.
    torch.set_num_threads(1)
    machine = environment(thresholds)
    results = judging_runs.judge_run(
        run, scenarios, thresholds, info=info_of(run), environment=machine, before=before
    )
    if known is not None:
        results = mark_findings(results, known, datetime.now(UTC).date())
    return add_exit_code(results, strict_numerics=strict_numerics)


def publish(run: RunFolder, results: Results) -> Path:
    """Write results.json, the same data as tables, and the pages. Return the main page."""
    run.write_results(results)
    table_files.write(results, run.path)
    besides = html.Besides(changes=changes_since_last(run.path, results))
    return html.publish(results, run.path, besides)


def info_of(run: RunFolder) -> RunInfo:
    """Return the facts about a stored run and its gathering."""
    plan = run.plan()
    return read_record(RunInfo, run.path / INFO) or RunInfo(
        plan.run, plan.started, plan.started, 0.0, plan.command, plan.jobs
    )


def keep_info(run: RunFolder, summary: RunSummary) -> None:
    """Save the cost of the gathering, including the time before it was resumed."""
    before = info_of(run)
    info = replace(
        before,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=before.seconds + summary.seconds,
        peak_mib=max(before.peak_mib, summary.peak_mib),
        resumed=summary.resumed,
    )
    write_record(run.path / INFO, info)


def environment(thresholds: Thresholds) -> Environment:
    """Return the description of this machine, its devices and versions, and the thresholds."""
    gpus = range(torch.cuda.device_count())
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        device="cuda" if torch.cuda.is_available() else "cpu",
        devices=tuple(torch.cuda.get_device_name(index) for index in gpus) or (machine.device(),),
        settings=machine.arithmetic(),
        versions=read_versions(),
        thresholds=thresholds,
    )
