"""Report a difference to those who have to fix it: run it again on every column in both precisions,
and write a page, a standalone script and an issue for upstream.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from conformance.commands.fuzz import batch as batches
from conformance.commands.fuzz.causes import ProgramDifference, slug
from conformance.commands.repro import UpstreamProject, issue, script
from conformance.commands.shared import execution
from conformance.errors import ConformanceError
from conformance.judge.expectations import KnownGaps
from conformance.spec.records import Backend, Cell, Model, Precision, Results


def write_differences(
    differences: Sequence[ProgramDifference],
    models: Sequence[Model],
    backends: Sequence[Backend],
    *,
    folder: Path,
    known: KnownGaps,
    cache: Path,
) -> tuple[ProgramDifference, ...]:
    """Return the differences with the files written for each in `folder`."""
    reported: list[ProgramDifference] = []
    for model in models:
        own = [difference for difference in differences if difference.model == model.id]
        if not own:
            continue
        batch = batches.begin(
            folder,
            model,
            [batches.ProgramTrial(difference.program, tuple(backends)) for difference in own],
            precisions=tuple(Precision),
            cache=cache,
        )
        finished = execution.execute(
            batch.run,
            batch.run.plan(),
            batch.scenarios,
            cache=cache,
            observations=batch.run.path / "observations",
            limits=batches.LIMITS,
            jobs=2,
            on_event=lambda _: None,
            known=known,
        )
        if finished is None:
            reported += own
            continue
        results, page = finished[0], str(finished[1])
        reported += [
            replace(one, files=(*_files(one, batch, results, folder), page)) for one in own
        ]
    return tuple(reported)


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
    shared = script.hide_folders(cell)
    column = next(column for column in batch.columns if column.id == cell.backend)
    try:
        recorded = script.collect_facts(results, shared, batch.model, column)
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
