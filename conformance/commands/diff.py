"""`conformance diff`: compare two judged runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from conformance.commands.shared import selecting
from conformance.commands.shared.options import Reports, out


def diff(
    *,
    before: Annotated[str, typer.Argument(help="The run before: a name under reports/.")],
    after: Annotated[str, typer.Argument(help="The run after; a folder's path will do too.")],
    margin: Annotated[
        float, typer.Option(min=1.01, help="Tell margins that shrank by this factor.")
    ] = 2.0,
    cost: Annotated[
        float, typer.Option(min=1.01, help="Tell times and memory that changed by this factor.")
    ] = 1.5,
    strict: Annotated[
        bool, typer.Option(help="Shrunken margins and missing cells are regressions too.")
    ] = False,
    json: Annotated[Path | None, typer.Option(help="Write the differences as JSON.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write them as Markdown.")] = None,
    html: Annotated[Path | None, typer.Option(help="Write them as a page.")] = None,
    reports: Reports,
) -> None:
    """Compare two judged runs: failures, fixes, layouts, margins, speed, memory.

    Exits 1 when a cell that did not fail before fails now or is no longer supported.
    """
    from conformance.report import diff as differences
    from conformance.report import render
    from conformance.runner.store.files import write_text
    from conformance.spec.records import to_json

    a, b = (
        selecting.open_run(Path() if Path(name, "plan.json").is_file() else reports, name).results()
        for name in (before, after)
    )
    compared = differences.compare(a, b, margin=margin, cost=cost)
    answer = differences.document(compared)
    if json:
        write_text(json, to_json(compared, indent=1) + "\n")
    if markdown:
        write_text(markdown, render.markdown.document(answer))
    if html:
        write_text(html, render.page.document(answer))
    render.terminal.document(answer, out)
    raise typer.Exit(compared.exit_code(strict=strict))
