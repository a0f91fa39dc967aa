"""`conformance calibrate`: gather the clean set, hold every honest run out, set the thresholds."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from conformance.calibration import cleanset
from conformance.calibration.quantiles import calibrate
from conformance.calibration.scores import CleanCase, held_out, stored
from conformance.records import Calibration, Model, Thresholds
from conformance.report.progress import Progress as RunProgress
from conformance.runner import Limits
from conformance.scenario import Scenario
from conformance.store import RunFolder, RunPlan, installed


def measure(
    models: Sequence[Model],
    scenarios: Mapping[str, Scenario],
    *,
    reports: Path,
    folder: Path,
    cache: Path,
    jobs: int,
    limits: Limits,
    device: str,
    console: Console,
) -> Calibration | None:
    """Calibrate on the clean set of these models; None when it was interrupted.

    What is gathered is kept under `reports`/calibration, where the next call finds it.
    `folder` holds the scenario files. Raises ConformanceError when a reference fails and
    when there are too few cases.
    """
    chosen = cleanset.variants(models, scenarios)
    run = RunFolder(reports.resolve() / "calibration")
    planned = cleanset.planned_cells(chosen)
    run.write_plan(
        RunPlan(
            run=run.id,
            started=datetime.now(UTC).isoformat(timespec="seconds"),
            command="conformance calibrate",
            models=tuple(one.model for one in chosen),
            columns=(),
            cells=planned,
            thresholds=Thresholds(),
            scenarios=str(folder),
            jobs=jobs,
        )
    )
    with RunProgress(planned, console) as progress:
        gathered = cleanset.gather(
            run,
            chosen,
            folder=folder,
            cache=cache,
            jobs=jobs,
            limits=limits,
            device=device,
            on_event=progress,
        )
    if gathered.interrupted:
        return None
    return of_cases(list(cleanset.clean_cases(run, chosen, cache)), device, console)


def of_stored(
    run: RunFolder, scenarios: Mapping[str, Scenario], device: str, console: Console
) -> Calibration:
    """Calibrate on the references of a stored run. Raises ConformanceError as `measure` does."""
    return of_cases(list(stored(run, scenarios)), device, console)


def of_cases(cases: Sequence[CleanCase], device: str, console: Console) -> Calibration:
    with Progress(
        TextColumn("holding out honest runs"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
        console=console,
        transient=True,
    ) as progress:
        task = progress.add_task("", total=len(cases))
        scores = tuple(held_out(cases, _shown(progress, task)))
    return calibrate(
        scores,
        date=datetime.now(UTC).date().isoformat(),
        device=device,
        versions=installed(),
    )


def _shown(progress: Progress, task: TaskID) -> Callable[[CleanCase], None]:
    def on_case(clean: CleanCase) -> None:
        progress.update(task, advance=1, description=f"{clean.model} {clean.name}")

    return on_case
