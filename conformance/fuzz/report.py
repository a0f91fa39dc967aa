"""Report a difference to those who have to fix it: run it again on every column in both precisions,
and write a page, a standalone script and an issue for upstream.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from conformance import judging_runs
from conformance.errors import ConformanceError
from conformance.execution import environment, publish
from conformance.expectations import KnownGaps, concluded, marked
from conformance.fuzz import batch as batches
from conformance.fuzz.causes import ProgramDifference, slug
from conformance.planning.machine import conditions
from conformance.records import Backend, Cell, Model, Precision, Results, RunInfo, Thresholds
from conformance.repro import UpstreamProject, issue, script
from conformance.runner import Event, TimeLimits
from conformance.runner import run as run_jobs


def reported(
    differences: Sequence[ProgramDifference],
    models: Sequence[Model],
    backends: Sequence[Backend],
    *,
    folder: Path,
    known: KnownGaps,
    cache: Path,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
) -> tuple[ProgramDifference, ...]:
    """Return the differences with the files written for each in `folder`."""
    reported: list[ProgramDifference] = []
    for model in models:
        own = [difference for difference in differences if difference.model == model.id]
        if own:
            reported += _of_model(own, model, backends, folder, known, cache, limits, on_event)
    return tuple(reported)


def _of_model(
    differences: Sequence[ProgramDifference],
    model: Model,
    backends: Sequence[Backend],
    folder: Path,
    known: KnownGaps,
    cache: Path,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
) -> list[ProgramDifference]:
    thresholds = Thresholds()
    batch = batches.begin(
        folder,
        model,
        [batches.ProgramTrial(difference.program, tuple(backends)) for difference in differences],
        precisions=tuple(Precision),
        cache=cache,
        thresholds=thresholds,
        lean=False,
    )
    summary = run_jobs(
        list(batch.planned.values()),
        logs=batch.run.path / "zygotes",
        jobs=2,
        limits=limits,
        device=conditions(),
        on_event=on_event,
    )
    if summary.interrupted:
        return list(differences)
    plan = batch.run.plan()
    now = datetime.now(UTC).isoformat(timespec="seconds")
    info = RunInfo(plan.run, plan.started, now, summary.seconds, plan.command)
    results = judging_runs.judge_run(
        batch.run, batch.scenarios, thresholds, info=info, environment=environment(thresholds)
    )
    results = concluded(marked(results, known, datetime.now(UTC).date()))
    page = publish(batch.run, results)
    return [
        replace(difference, files=(*_files(difference, batch, results, folder), str(page)))
        for difference in differences
    ]


def _files(
    difference: ProgramDifference, batch: batches.ProgramBatch, results: Results, folder: Path
) -> list[str]:
    """Write the scenario, and a script and an issue for the first failing cell. Return paths."""
    name = difference.program.name
    scenario = batch.scenarios[name]
    copied = folder / f"{slug(difference.cause)}.py"
    copied.write_text(scenario.path.read_text(encoding="utf-8"), encoding="utf-8")
    files = [str(copied)]
    failing = {
        Cell(difference.model, failure.backend, name, batches.CASE).id
        for failure in difference.failures
    }
    cell = next((cell for cell in results.cells if cell.id in failing and cell.verdict.fails), None)
    if cell is None:
        return files
    shared = script.shareable(cell)
    column = next(column for column in batch.columns if column.id == cell.backend)
    try:
        recorded = script.recorded(results, shared, batch.model, column)
    except ConformanceError:  # an engine that is not part of this project
        return files
    path = folder / f"repro_{slug(difference.cause)}.py"
    text = script.text(shared, recorded, scenario, file=path.name)
    path.write_text(text, encoding="utf-8")
    try:
        project = issue.addressee(shared, column)
    except ConformanceError:  # undecided: the trace is nnsight's
        project = UpstreamProject.NNSIGHT
    words = issue.text(results, shared, batch.model, project, text, path.name)
    path.with_suffix(".md").write_text(words, encoding="utf-8")
    return [*files, str(path), str(path.with_suffix(".md"))]
