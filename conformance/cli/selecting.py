"""From options to models, cells and runs."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from conformance import plan
from conformance.cli.options import CALIBRATION, ENVIRONMENTS, KNOWN, err, out
from conformance.errors import ExitCode
from conformance.records import Cell, Column, Model, Thresholds

if TYPE_CHECKING:
    from conformance.expectations import Known
    from conformance.records import Results
    from conformance.runner import Limits
    from conformance.store import RunFolder


def known(path: Path, manifest: Path, scenarios: Path) -> tuple[Known, tuple[Cell, ...]]:
    """The expectations, and every cell there could be. The default file may be absent."""
    from conformance import manifest as manifests
    from conformance.scenario import discover

    whole = manifests.load(manifest)
    return expected(path), plan.cells(whole.models, whole.backends, discover(scenarios))


def expected(path: Path = KNOWN) -> Known:
    """The expectations. The default file may be absent."""
    from conformance import expectations

    return expectations.Known() if path == KNOWN and not path.exists() else expectations.load(path)


def today() -> date:
    return datetime.now(UTC).date()


def begun(
    reports: Path,
    scenarios: Path,
    chosen: tuple[tuple[Model, ...], tuple[Column, ...], tuple[Cell, ...]],
    jobs: int | None,
) -> RunFolder:
    """A new run's folder with its plan."""
    from conformance import calibration, execution

    calibrated = calibration.read(CALIBRATION)
    return execution.begin(
        reports,
        *chosen,
        scenarios=scenarios.resolve(),
        thresholds=calibration.thresholds(calibrated),
        calibration=calibrated,
        jobs=jobs or os.cpu_count() or 1,
    )


def new_run(
    reports: Path,
    manifest: Path,
    scenarios: Path,
    model: list[str],
    backend: list[str],
    expression: str,
    tier: str,
    env: list[str],
    environments: Path,
    jobs: int | None,
) -> RunFolder:
    """A new run's folder with the plan of what the options ask for. Environments are built."""
    cells = chosen(
        manifest, scenarios, model, backend, expression, tier, env=env, environments=environments
    )
    return begun(reports, scenarios, cells, jobs)


def executed(
    folder: RunFolder,
    scenarios: Path,
    limits: Limits,
    jobs: int | None,
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
            limits=limits,
            jobs=jobs or os.cpu_count() or 1,
            on_event=progress,
            known=known,
        )
    if finished.results is None or finished.page is None:
        err.print(f"interrupted; go on with: conformance {verb} --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    return finished.results, finished.page


def chosen(
    manifest: Path,
    scenarios: Path,
    model: list[str],
    backend: list[str],
    expression: str,
    tier: str,
    *,
    env: Sequence[str] = (),
    environments: Path = ENVIRONMENTS,
) -> tuple[tuple[Model, ...], tuple[Column, ...], tuple[Cell, ...]]:
    """Models, backends and cells that the options ask for. Environments are built."""
    from conformance import manifest as manifests
    from conformance.cli.environments import placed

    known = manifests.load(manifest)
    models = plan.choose(known.models, model, "model")
    if not model:
        models = plan.in_tier(models, tier)
    defaults = [column.id for column in known.backends if column.default]
    columns = placed(known.backends, backend or defaults, env, environments)
    selection = known.tiers.get(tier, manifests.Tier())
    cells = cells_of(models, columns, scenarios, expression, selection.scenarios)
    narrow = {} if model else selection.backends
    return models, columns, plan.narrowed(cells, models, columns, narrow)


def cells_of(
    models: Sequence[Model],
    columns: Sequence[Column],
    scenarios: Path,
    expression: str,
    only: Sequence[str],
) -> tuple[Cell, ...]:
    """Every cell of these that is asked for, of these scenarios only where some are named."""
    from conformance.scenario import discover

    return plan.cells(models, columns, plan.only(discover(scenarios), only), expression)


def thresholds() -> Thresholds:
    from conformance import calibration

    return calibration.thresholds(calibration.read(CALIBRATION))


def open_run(reports: Path, name: str) -> RunFolder:
    from conformance import store

    return store.open_run(reports, name)
