"""What `conformance run` does: plan → jobs → observations → verdicts → report.

Nothing is lost on the way: the plan is written first, every observation as it is made,
and a run that was interrupted goes on where it stopped.
"""

from __future__ import annotations

import platform
import shlex
import sys
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch

from conformance import judging_runs
from conformance.diff import since
from conformance.expectations import Known, concluded, marked
from conformance.judging_runs import reduce_judged
from conformance.live_judging import LiveJudging
from conformance.planning import machine
from conformance.planning.jobs import planned_jobs
from conformance.planning.reopening import reopen_incomplete
from conformance.records import (
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
from conformance.report import html, tables
from conformance.runner import Event, Hire, Limits, Summary, itself
from conformance.runner import run as run_jobs
from conformance.scenario import Places, Scenario, as_planned, folders_of
from conformance.store import (
    ObservationCache,
    RunFolder,
    RunPlan,
    create_run,
    gathered_in,
    installed,
    keeping,
    point_latest,
)
from conformance.store.files import read_record, write_record

#: Beside plan.json: how the gathering went, for judging again later.
INFO = "run.json"


@dataclass(frozen=True)
class Finished:
    """A run's folder and page; `results` is None when it was interrupted."""

    folder: RunFolder
    summary: Summary
    results: Results | None
    page: Path | None


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
    """A new run folder with its plan. Every cell is gathered in each of the `precisions`, those
    that are `float32_only` in no other where that is one of them.
    """
    narrow = float32_only if Precision.FLOAT32 in precisions else ()
    now = datetime.now(UTC)
    run = create_run(reports, now)
    run.write_plan(
        RunPlan(
            run=run.id,
            started=now.isoformat(timespec="seconds"),
            command=shlex.join(["conformance", *sys.argv[1:]]),
            models=tuple(model for model in models if any(c.model == model.id for c in cells)),
            columns=tuple(c for c in columns if any(cell.backend == c.id for cell in cells)),
            cells=tuple(cells),
            thresholds=thresholds,
            precisions=tuple(precisions),
            float32_only=tuple(sorted(cell.id for cell in narrow)),
            selection=selection,
            keep=keep,
            scenarios=as_planned(scenarios),
            jobs=jobs,
        )
    )
    run.begin()
    point_latest(run)
    for column in columns:
        if column.untestable:
            _give_up(run, column, [cell for cell in cells if cell.backend == column.id], precisions)
    return run


def _give_up(
    run: RunFolder, column: Column, cells: Sequence[Cell], precisions: Sequence[Precision]
) -> None:
    """The cells of a column that has no environment say why."""
    outcome = Outcome(Status.UNTESTABLE, reason=column.untestable)
    for precision in precisions:
        folder = gathered_in(column.id, precision)
        for cell in cells:
            run.write_cell(cell.model, folder, cell.key, outcome, {})
        for model in dict.fromkeys(cell.model for cell in cells):
            group = Group(model, column.id, precision, outcome.status, outcome.reason)
            run.group_folder(model, folder).write_group(group)


def execute(
    run: RunFolder,
    plan: RunPlan,
    scenarios: Mapping[str, Scenario],
    *,
    cache: Path,
    limits: Limits,
    jobs: int,
    on_event: Callable[[Event], None],
    observations: Path | None = None,
    known: Known | None = None,
    tell: Callable[[str], None] = lambda _: None,
    hire: Hire | None = None,
) -> Finished:
    """Gather what the run's `plan` asks for and is not there yet, judge and report. A model whose
    last group has ended is judged at once, and `tell` is called with a line on it.

    `observations` is where finished ones are kept between runs, by default in `cache`. What is
    `known` not to pass is marked so, and is no failure of the run. `hire` has groups run on other
    machines than this one.
    Ctrl-C ends the gathering; what was gathered is kept, and the run can be resumed.
    """
    run.begin()
    reopen_incomplete(run, plan)
    reduced = keeping.reduced(run, [model.id for model in plan.models])
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
    with LiveJudging(
        run,
        scenarios,
        [
            (job.id, model)
            for job in planned
            for model in [job.id.partition(":")[0]]
            if model not in reduced
        ],
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
            hire=hire or itself,
        )
        if summary.interrupted:
            return Finished(run, summary, None, None)
        judged = growing.judged()
    keep_info(run, plan, summary)
    run.finish()
    before = {**keeping.cells(run, settled), **judged}
    results = judge(run, scenarios, plan.thresholds, known, before=before)
    if plan.keep == "failing":
        by_id = {cell.id: cell for cell in results.cells}
        for model in plan.models:
            reduce_judged(run, model, plan.columns, by_id, plan.thresholds)
    page = publish(run, results)
    return Finished(run, summary, results, page)


def once_more(
    reports: Path,
    plan: RunPlan,
    scenarios: Mapping[str, Scenario],
    *,
    fresh: bool,
    cache: Path,
    limits: Limits,
    on_event: Callable[[Event], None],
) -> Finished:
    """A new run in `reports` of what a plan holds, under its conditions. With `fresh` nothing is
    taken from the cache of observations, not even the reference.
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
    known: Known | None = None,
    *,
    strict_numerics: bool = False,
    before: Mapping[str, CellResult] | None = None,
) -> Results:
    """The verdicts on a stored run. No engine is started. What is `known` not to pass is
    marked so. With `strict_numerics` cells that drift in bf16 fail the run. Verdicts that are
    there from `before` are taken as they are, and so are those on cells whose tensors were not
    kept.

    Raises ConformanceError for a run that is unfinished, and where other limits are asked of cells
    whose tensors were not kept.
    """
    run.check_finished()
    found = keeping.reduced(run, [model.id for model in run.plan().models])
    keeping.check_thresholds(found, thresholds)
    # Thousands of small operations: several threads cost five times what one does.
    torch.set_num_threads(1)
    machine = environment(thresholds)
    results = judging_runs.judge_run(
        run, scenarios, thresholds, info=info_of(run), environment=machine, before=before
    )
    if known is not None:
        results = marked(results, known, datetime.now(UTC).date())
    return concluded(results, strict_numerics=strict_numerics)


def publish(run: RunFolder, results: Results) -> Path:
    """Write results.json, the same as tables, and the pages."""
    run.write_results(results)
    tables.write(results, run.path)
    besides = html.Besides(changes=since.last(run.path, results))
    return html.publish(results, run.path, besides)


def info_of(run: RunFolder) -> RunInfo:
    """What a stored run and its gathering were."""
    plan = run.plan()
    return read_record(RunInfo, run.path / INFO) or RunInfo(
        plan.run, plan.started, plan.started, 0.0, plan.command, plan.jobs
    )


def keep_info(run: RunFolder, plan: RunPlan, summary: Summary) -> None:
    """Keep what the gathering took, with what it took before it was resumed."""
    before = read_record(RunInfo, run.path / INFO)
    info = RunInfo(
        id=plan.run,
        started=plan.started,
        finished=datetime.now(UTC).isoformat(timespec="seconds"),
        seconds=summary.seconds,
        command=plan.command,
        jobs=plan.jobs,
        peak_mib=summary.peak_mib,
        resumed=summary.resumed,
    )
    if before is not None:
        info = replace(
            info,
            seconds=before.seconds + info.seconds,
            peak_mib=max(before.peak_mib, info.peak_mib),
        )
    write_record(run.path / INFO, info)


def environment(thresholds: Thresholds) -> Environment:
    """This machine, its versions, and what is judged with."""
    gpus = range(torch.cuda.device_count())
    return Environment(
        python=platform.python_version(),
        platform=platform.platform(),
        device="cuda" if torch.cuda.is_available() else "cpu",
        devices=tuple(torch.cuda.get_device_name(index) for index in gpus) or (machine.device(),),
        settings=machine.arithmetic(),
        versions=installed(),
        thresholds=thresholds,
    )
