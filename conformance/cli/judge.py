"""`conformance judge`: a stored run judged again."""

from __future__ import annotations

import gc
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from conformance import selection
from conformance.cli import selecting
from conformance.cli.options import REPORTS, SCENARIOS, Folder, Reports, Run, out
from conformance.errors import ConformanceError


def judge(
    name: Run = "latest",
    k_med: Annotated[float | None, typer.Option(help="Threshold on the median ratio.")] = None,
    k_max: Annotated[float | None, typer.Option(help="Threshold on the largest ratio.")] = None,
    calibrated: Annotated[
        Path | None,
        typer.Option(
            "--calibration",
            help="Thresholds of this file; without it, those that the run began with.",
        ),
    ] = None,
    scenarios: Folder = SCENARIOS,
    reports: Reports = REPORTS,
) -> None:
    """Judge a stored run again, without engines, perhaps with other thresholds.

    Examples: `conformance judge latest --k-max 1.8`,
    `conformance judge latest --calibration calibration.json`.
    """
    from conformance import parallel

    folder = selecting.open_run(reports, name)
    plan_of_run = folder.plan()
    # Its imports take as long as the ones below.
    parallel.prepare(len(plan_of_run.cells))
    # A second goes into looking for cycles among half a million records, for nothing.
    gc.disable()

    from conformance import calibration, execution, sweep
    from conformance.report.terminal import summary
    from conformance.scenario import discover

    found, thresholds = plan_of_run.calibration, plan_of_run.thresholds
    if calibrated is not None:
        found = calibration.read(calibrated)
        if found is None:
            raise ConformanceError("there is no such file", path=calibrated)
        thresholds = calibration.thresholds(found)
    if k_med is not None or k_max is not None:
        found = None
        thresholds = replace(
            thresholds,
            k_med=thresholds.k_med if k_med is None else k_med,
            k_max=thresholds.k_max if k_max is None else k_max,
            source="command line",
        )
    known = selection.expected()
    results = execution.judge(folder, discover(scenarios), thresholds, found, known)
    page = execution.publish(folder, results)
    sweep.publish_if_swept(folder, results)
    summary(results, page, out)
    raise typer.Exit(results.footer.exit_code)
