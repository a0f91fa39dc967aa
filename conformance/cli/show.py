"""`conformance list`, `show`, `report` and `schema`: what there is, in words."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from conformance.cli import selecting
from conformance.cli.options import (
    MANIFEST,
    REPORTS,
    SCENARIOS,
    Backends,
    Expression,
    Folder,
    Manifest,
    Models,
    Reports,
    Run,
    Tier,
    err,
    out,
)

if TYPE_CHECKING:
    pass


def list_cells(
    model: Models = [],  # noqa: B006
    backend: Backends = [],  # noqa: B006
    expression: Expression = "",
    tier: Tier = "default",
    manifest: Manifest = MANIFEST,
    scenarios: Folder = SCENARIOS,
) -> None:
    """List the cells that `run` would run, one id a line; counts go to standard error."""
    models, backends, cells = selecting.chosen(
        manifest, scenarios, model, backend, expression, tier
    )
    for cell in cells:
        typer.echo(cell.id)
    err.print(f"{len(models)} models × {len(backends)} backends: {len(cells)} cells")


def show(
    cell: Annotated[str, typer.Argument(help="A cell's id, or a part that only it has.")],
    name: Annotated[str, typer.Option("--run", help="A run's name, or `latest`.")] = "latest",
    reports: Reports = REPORTS,
) -> None:
    """Explain one cell's verdict: the same reasoning as in the report."""
    from conformance.report import terminal

    terminal.show(selecting.open_run(reports, name).results(), cell, out)


def report(name: Run = "latest", reports: Reports = REPORTS) -> None:
    """Write the page of a judged run anew and print its path."""
    from conformance.report import html

    folder = selecting.open_run(reports, name)
    typer.echo(html.write(folder.results(), folder.path))


def schema() -> None:
    """Print the JSON schema of results.json."""
    from conformance.report.schema import results_schema

    typer.echo(results_schema())
