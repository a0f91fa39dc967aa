"""`conformance list`, `show`, `report` and `schema`: describe cells, runs and formats."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from conformance.cli import selecting
from conformance.cli.options import Choice, Reports, Without, err, out
from conformance.planning import selection

if TYPE_CHECKING:
    from conformance.records import Results
    from conformance.report.sections.comparisons import Changes


def list_cells(choice: Annotated[Choice, Without("env", "environments", "allow_moves")]) -> None:
    """List the cells that `run` would run, one id a line; counts go to standard error."""
    selected = selection.select(choice)
    for cell in selected.cells:
        typer.echo(cell.id)
    models, columns = len(selected.models), len(selected.columns)
    err.print(f"{models} models × {columns} backends: {len(selected.cells)} cells")
    err.print(selected.selection.words, highlight=False)


def show(
    *,
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    name: Annotated[str, typer.Option("--run", help="A run's name, or `latest`.")] = "latest",
    reports: Reports,
) -> None:
    """Explain one cell's verdict, with the same reasoning as in the report."""
    from conformance.report import cell_text

    folder = selecting.open_run(reports, name, cell)
    where = selecting.found_with(folder, reports)
    cell_text.show(folder.results(), cell, out, where, selecting.elsewhere(folder.path))


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
    from conformance.report import html

    if names and len(names) > 1:
        typer.echo(_merged(names, against, reports))
        return
    folder = selecting.open_run(reports, *(names or ["latest"]))
    results = folder.results()
    changes = _changes(folder.path, results, against, reports)
    typer.echo(html.publish(results, folder.path, html.Besides(changes=changes)))


def _merged(names: list[str], against: str, reports: Path) -> Path:
    from conformance.report import html, merging, tables
    from conformance.store import RunFolder

    merged = merging.merged([selecting.open_run(reports, name).results() for name in names])
    folder = RunFolder(reports / merged.results.run.id)
    folder.path.mkdir(exist_ok=True)
    folder.write_results(merged.results)
    tables.write(merged.results, folder.path)
    changes = _changes(folder.path, merged.results, against or "none", reports)
    besides = html.Besides(changes=changes, sources=merged.sources, origin=merged.origin)
    return html.publish(merged.results, folder.path, besides)


def _changes(path: Path, results: Results, against: str, reports: Path) -> Changes | None:
    from conformance import diff

    if against == "none":
        return None
    if against:
        return diff.changes_between(selecting.open_run(reports, against).results(), results)
    return diff.changes_since_last(path, results)


def schema() -> None:
    """Print the JSON schema of results.json."""
    from conformance.report.schema import results_schema

    typer.echo(results_schema())
