"""`conformance history`: show stored runs over time."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli.options import Reports, err, out


def history(
    *,
    last: Annotated[int, typer.Option(min=1, help="So many of the newest runs.")] = 12,
    reports: Reports,
) -> None:
    """Show the stored runs over time: verdicts and margins of each model and column, and the
    versions of each run. Writes history.html into the reports folder and prints its path.
    """
    from conformance import history as past
    from conformance.report import render
    from conformance.store.files import write_text

    def tell(name: str) -> None:
        err.print(f"reading {name}", highlight=False)

    answer = past.document(past.stored(reports, last, tell))
    render.terminal.document(answer, out)
    page = reports / "history.html"
    write_text(page, render.page.document(answer))
    typer.echo(page)
