"""From options to runs."""

from __future__ import annotations

from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from conformance.cli.options import CALIBRATION, Choice, Running, err, out
from conformance.errors import ExitCode
from conformance.records import Thresholds
from conformance.selection import Selected, expected, select

if TYPE_CHECKING:
    from conformance.expectations import Known
    from conformance.records import Results
    from conformance.store import RunFolder


def today() -> date:
    return datetime.now(UTC).date()


def begun(reports: Path, scenarios: Path, selected: Selected, jobs: int) -> RunFolder:
    """A new run's folder with its plan."""
    from conformance import calibration, execution

    calibrated = calibration.read(CALIBRATION)
    return execution.begin(
        reports,
        *selected,
        scenarios=scenarios.resolve(),
        thresholds=calibration.thresholds(calibrated),
        calibration=calibrated,
        jobs=jobs,
    )


def new_run(reports: Path, choice: Choice, running: Running) -> RunFolder:
    """A new run's folder with the plan of what the options ask for. Environments are built."""
    from conformance.cli.environments import had

    return begun(reports, choice.scenarios, select(choice, had), running.groups)


def executed(
    folder: RunFolder,
    scenarios: Path,
    running: Running,
    *,
    verb: str = "run",
    known: Known | None = None,
) -> tuple[Results, Path]:
    """Gather, judge and report. Exits when interrupted; `verb` goes on with it. What is `known`
    not to pass is what known.yaml says, where nothing else is given.
    """
    from conformance import execution
    from conformance.checkpoints import cache_folder
    from conformance.report.progress import Progress
    from conformance.scenario import discover

    plan = folder.plan()
    known = expected() if known is None else known
    nowhere = {column.id for column in plan.columns if column.untestable}
    cells = [cell for cell in plan.cells if cell.backend not in nowhere]
    with Progress(cells, out) as progress:
        finished = execution.execute(
            folder,
            discover(scenarios),
            cache=cache_folder(),
            limits=running.limits,
            jobs=running.groups,
            on_event=progress,
            known=known,
        )
    if finished.results is None or finished.page is None:
        err.print(f"interrupted; go on with: conformance {verb} --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    return finished.results, finished.page


def thresholds() -> Thresholds:
    from conformance import calibration

    return calibration.thresholds(calibration.read(CALIBRATION))


def open_run(reports: Path, name: str) -> RunFolder:
    from conformance import store

    return store.open_run(reports, name)
