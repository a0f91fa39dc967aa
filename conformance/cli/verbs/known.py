"""`conformance known …`: maintain the expectations."""

from __future__ import annotations

from typing import Annotated

import typer

from conformance.cli import selecting
from conformance.cli.options import (
    Expectations,
    Folder,
    Manifest,
    Reports,
    Run,
    err,
)
from conformance.errors import ExitCode
from conformance.planning import selection


def update_known(
    *,
    name: Run = "latest",
    write: Annotated[bool, typer.Option(help="Write the file instead of a diff.")] = False,
    expectations: Expectations,
    manifest: Manifest,
    scenarios: Folder,
    reports: Reports,
) -> None:
    """Propose the smallest edit of known.yaml that makes a run as expected, as a diff.

    Exits 1 when an edit is proposed and not written.
    """
    from conformance.expectations import difference, update
    from conformance.store.files import write_text

    known = selection.expected(expectations)
    every = selection.every_cell(manifest, scenarios)
    text = expectations.read_text("utf-8") if expectations.is_file() else "known: []\n"
    updated = update(
        text, known, selecting.open_run(reports, name).results(), every, selecting.today()
    )
    for line in (*updated.changes, *(f"left for you: {line}" for line in updated.unsolved)):
        err.print(line, markup=False, highlight=False, soft_wrap=True)
    if write:
        write_text(expectations, updated.text)
    else:
        typer.echo(difference(text, updated.text, expectations), nl=False)
        raise typer.Exit(ExitCode.UNEXPECTED if updated.changes else ExitCode.OK)
