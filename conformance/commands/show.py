"""Commands that describe cells, stored runs and formats."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.commands.shared import selecting
from conformance.commands.shared.options import Choice, Reports, Without, err, note, out
from conformance.runner.planning import selection
from conformance.spec.shortening import few

if TYPE_CHECKING:
    from conformance.report.diff import Diff
    from conformance.spec.records import Results


def list_cells(choice: Annotated[Choice, Without("env", "environments", "allow_moves")]) -> None:
    """List the cells that `run` would run, one id a line; counts go to standard error."""
    selected = selection.select(choice)
    for cell in selected.cells:
        typer.echo(cell.id)
    models, columns = len(selected.models), len(selected.columns)
    err.print(f"{models} models × {columns} backends: {len(selected.cells)} cells")
    note(selected.selection.words)
    for one in selected.selection.missing_parts:
        note(f"not planned: {one.scenario} needs {one.part}; missing in {few(one.models, 6)}")


def show(
    *,
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    name: Annotated[str, typer.Option("--run", help="A run's name, or `latest`.")] = "latest",
    reports: Reports,
) -> None:
    """Explain one cell's verdict, with the same reasoning as in the report."""
    from conformance.report import terminal_text

    folder = selecting.open_run(reports, name, cell)
    where = selecting.list_find_options(folder, reports)
    terminal_text.show(folder.results(), cell, out, where, selecting.find_start_folder(folder.path))


def report(
    *,
    names: Annotated[
        list[str] | None,
        typer.Argument(help="A run's name, or `latest`; several runs become one page."),
    ] = None,
    against: Annotated[
        str,
        typer.Option(help="Compare with this run; by default the one before, `none` for no run."),
    ] = "",
    reports: Reports,
) -> None:
    """Write the pages of a judged run, or of several merged runs, again and print the path.

    Runs of several machines get a column each: `conformance report RUN_CPU RUN_GPU` writes
    `reports/RUN_CPU+RUN_GPU/index.html`. Runs are refused if they are incomplete or not comparable
    (other thresholds, weights or scenarios, the same cells on the same hardware).
    """
    from conformance.report import html, merging, table_files
    from conformance.runner.store import RunFolder

    folders = [selecting.open_run(reports, name) for name in names or ["latest"]]
    if len(folders) == 1:
        [folder] = folders
        results, besides = folder.results(), html.Besides()
    else:
        merged = merging.merge([folder.results() for folder in folders])
        results = merged.results
        besides = html.Besides(sources=merged.sources, origin=merged.origin)
        folder = RunFolder(reports / results.run.id)
        folder.path.mkdir(exist_ok=True)
        folder.write_results(results)
        table_files.write(results, folder.path)
        against = against or "none"
    changes = _changes(folder.path, results, against, reports)
    typer.echo(html.publish(results, folder.path, replace(besides, changes=changes)))


def _changes(path: Path, results: Results, against: str, reports: Path) -> Diff | None:
    from conformance.report import diff

    if against == "none":
        return None
    if against:
        return diff.compare(selecting.open_run(reports, against).results(), results)
    return diff.changes_since_last(path, results)


def schema() -> None:
    """Print the JSON schema of results.json."""
    from conformance.report.schema import results_schema

    typer.echo(results_schema())
