"""`conformance judge`: judge a stored run again."""

from __future__ import annotations

import gc
from typing import Annotated

import typer

from conformance.cli import engines, selecting
from conformance.cli.options import Folder, Reports, Run, out
from conformance.errors import ConformanceError
from conformance.planning import selection
from conformance.records import Thresholds, widened


def judge(
    *,
    name: Run = "latest",
    widen: Annotated[
        float,
        typer.Option(min=1.0, help="All limits so many times as wide, to see what hangs on them."),
    ] = 1.0,
    strict_numerics: Annotated[
        bool, typer.Option(help="Cells that drift in bf16 fail the run too.")
    ] = False,
    scenarios: Folder,
    reports: Reports,
) -> None:
    """Judge a stored run again, without engines, perhaps with wider limits.

    Examples: `conformance judge latest`, `conformance judge latest --widen 20` (of a run with
    `--keep all`).
    """
    engines.needed()
    from conformance.processes import parallel

    folder = selecting.open_run(reports, name)
    plan_of_run = folder.plan()
    # Starting its processes takes as long as the imports below.
    parallel.prepare(len(plan_of_run.cells))
    # Searching half a million records for cycles takes a second and finds none.
    gc.disable()

    from conformance import execution
    from conformance.check import kept
    from conformance.report.terminal_summary import summary
    from conformance.scenario import discover

    if folder.is_check:
        if widen != 1 or strict_numerics:
            raise ConformanceError("the answers of a check have one set of limits")
        results, page = kept.answered_again(folder)
        summary(results, page, out)
        raise typer.Exit(results.footer.exit_code)
    known = selection.expected()
    results = execution.judge(
        folder,
        discover(scenarios),
        widened(Thresholds(), widen),
        known,
        strict_numerics=strict_numerics,
    )
    page = execution.publish(folder, results)
    summary(results, page, out)
    raise typer.Exit(results.footer.exit_code)
