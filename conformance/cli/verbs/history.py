"""`conformance history`: stored runs over time."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli.options import Reports, err, out


def history(
    *,
    last: Annotated[int, typer.Option(min=1, help="So many of the newest runs.")] = 12,
    reports: Reports,
) -> None:
    """What the stored runs came to: verdicts and margins of each model and column over time, and
    the versions that each run had. Writes history.html beside the runs and prints its path.
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
