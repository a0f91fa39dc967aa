"""`conformance history`: show the stored runs over time."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.commands.shared.options import Reports, note, out


def history(
    *,
    last: Annotated[int, typer.Option(min=1, help="So many of the newest runs.")] = 12,
    reports: Reports,
) -> None:
    """Show the stored runs over time: verdicts and margins of each model and column, and the
    versions of each run. Writes history.html into the reports folder and prints its path.
    """
    from conformance.report import history as past
    from conformance.report import render
    from conformance.runner.store.files import write_text

    runs = past.load_history(reports, last, lambda name: note(f"reading {name}"))
    answer = past.document(runs)
    render.terminal.document(answer, out)
    page = reports / "history.html"
    write_text(page, render.page.document(answer))
    typer.echo(page)
