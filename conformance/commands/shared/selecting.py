"""Turn options into runs, and find stored runs and checks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from conformance.commands.shared.options import Choice, RunOptions, note, out
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning.selection import select
from conformance.spec import loose_json
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs import project
from conformance.spec.records import Thresholds
from conformance.spec.scenario import discover
from conformance.spec.shortening import few

if TYPE_CHECKING:
    from conformance.judge.expectations import KnownGaps
    from conformance.runner.planning.trust import Executed
    from conformance.runner.scheduling import Allocate
    from conformance.runner.store import RunFolder
    from conformance.spec.records import Cell, Results
    from conformance.spec.scenario import Places

#: The most files that a message about existing checks names.
_NAMED = 5


def today() -> date:
    return datetime.now(UTC).date()


def new_run(reports: Path, choice: Choice, running: RunOptions) -> RunFolder:
    """Create a run's folder with the plan that the options request, building its environments."""
    from conformance.commands.shared import execution
    from conformance.commands.shared.engines import obtain_environment
    from conformance.runner.planning import trust

    selected = select(choice, obtain_environment)
    trust.note(cache_folder(), trust.Executed(selected.models))
    return execution.begin(
        reports,
        selected.models,
        selected.columns,
        selected.cells,
        scenarios=choice.scenarios,
        float32_only=selected.float32_only,
        selection=selected.selection,
        keep=running.keep,
        thresholds=Thresholds(),
        precisions=running.precisions,
        jobs=running.groups,
    )


def execute_run(
    folder: RunFolder,
    scenarios: Places,
    running: RunOptions,
    *,
    known: KnownGaps | None = None,
    allocate: Allocate | None = None,
) -> tuple[Results, Path]:
    """Gather, judge and report. Exits when interrupted. `known` defaults to the project's
    known.yaml. Runs locally unless `allocate` is given.
    """
    from conformance.commands.shared import execution
    from conformance.judge.expectations import load_expectations
    from conformance.report.progress import Progress

    plan = folder.plan()
    known = load_expectations() if known is None else known
    nowhere = {column.id for column in plan.columns if column.untestable}
    cells = [cell for cell in plan.cells if cell.backend not in nowhere]
    only = plan.only_float32()
    with Progress(cells, out, precisions=plan.precisions, float32_only=only) as progress:
        finished = execution.execute(
            folder,
            plan,
            discover(scenarios),
            cache=cache_folder(),
            limits=running.limits,
            jobs=running.groups,
            on_event=progress,
            known=known,
            tell=progress.note,
            allocate=allocate,
        )
    if finished is None:
        note(f"interrupted; go on with: conformance run --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    return finished


@contextmanager
def join_cluster(on: str, running: RunOptions) -> Iterator[Allocate | None]:
    """Join the cluster that `on` names and yield what runs groups there; leave it afterwards. Yield
    None if `on` is empty.

    Raises ConformanceError if the cluster cannot be joined.
    """
    if not on:
        yield None
        return
    from conformance.report.render.terminal import clean
    from conformance.runner import cluster

    address = cluster.parse_address(on)
    if (ended := cluster.fork()) is not None:
        raise typer.Exit(ended)
    with cluster.connect(address) as joined:
        for machine in joined.machines:
            note(clean(f"{machine.name}: {machine.cannot or machine.device}"))
        yield joined.allocate(running.limits, most=running.jobs)


def to_resume(reports: Path, name: str, choice: Choice, *, trust: bool) -> RunFolder:
    """Return a stored run to resume. Raises ConformanceError if its plan would execute something
    that neither the installation nor the command line names, unless `trust`.
    """
    from conformance.runner.planning.trust import of_plan

    folder = open_run(reports, name)
    if folder.is_check:
        again = folder.plan().command
        raise ConformanceError("is no run but a check", path=folder.path, remedy=again)
    require_known(of_plan(folder.plan()), folder.path, choice, trust=trust)
    note(f"going on with {folder.id}")
    return folder


def require_known(
    executed: Executed, path: Path, choice: Choice, *, trust: bool, requirements: Sequence[str] = ()
) -> None:
    """Check what a run's files would execute; every caller that executes it must call this first.
    Raises ConformanceError for what neither the installation, nor `choice`, nor the `requirements`
    of the command line name, unless `trust`.
    """
    from conformance.runner.planning import trust as trusting

    if trust:
        return
    named = trusting.Named(choice.manifest, cache_folder(), choice.scenarios, tuple(requirements))
    trusting.require_known(executed, path, named)


def checks() -> Path:
    """Return the default folder in which `conformance check` stores its results."""
    return cache_folder() / "checks"


def open_run(reports: Path, name: str, cell: str = "") -> RunFolder:
    """Return a run or check by its name. `check` is the newest check, or the newest that has this
    cell.
    """
    from conformance.runner import store
    from conformance.runner.store.retention import CHECKS_RULE

    if name == "check":
        return newest_check(reports, cell)
    if name and not (reports / name).is_dir() and (checks() / name).is_dir():
        return store.open_run(checks(), name)
    try:
        return store.open_run(reports, name)
    except ConformanceError as error:
        if not name or (reports / name).is_dir():
            raise
        remedy = f"{error.remedy}; was it a check? {CHECKS_RULE}"
        raise ConformanceError(error.message, path=error.path, remedy=remedy) from None


def list_find_options(run: RunFolder, reports: Path) -> list[str]:
    """Return the options with which a command in this folder finds this run by its name. It was
    found in `reports`, or among the checks.
    """
    usual = {folder.resolve() for folder in (checks(), project.here().reports)}
    return [] if run.path.resolve().parent in usual else ["--reports", str(reports)]


def find_start_folder(check: Path) -> str:
    """Return the folder that a check was started in, or "" if it is the current one or unknown."""
    from conformance.runner.store import CHECK

    folder = str(loose_json.mapping(check / CHECK).get("folder", ""))
    return folder if folder != str(Path.cwd()) else ""


def newest_check(reports: Path, cell: str = "") -> RunFolder:
    """Return the newest check that has this cell, preferably one started in the current folder, and
    print which one. Without --reports, the folders of checks and of runs are searched; otherwise
    only the named folder.

    Raises ConformanceError if there is none.
    """
    from conformance.runner.store import CHECK, RunFolder

    usual = project.here().reports
    places = [checks(), reports] if reports.resolve() == usual.resolve() else [reports]
    paths = (path for place in places for path in place.glob("*") if not path.is_symlink())
    files = (CHECK, "results.json")
    ended = [RunFolder(one) for one in paths if all((one / name).is_file() for name in files)]
    ended.sort(key=lambda run: run.id, reverse=True)
    here = [run for run in ended if not find_start_folder(run.path)]
    run = _with_cell(here, cell) or _with_cell(ended, cell)
    if run is None:
        cases = few((one.case for each in here or ended for one in _planned(each)), _NAMED)
        had = f"there are checks of {cases}; " if cases else ""
        raise ConformanceError(
            f"no check has a cell {cell!r}" if cell and ended else "there is no check",
            path=places[0],
            remedy=f"{had}make one: conformance check FILE -m MODEL; one that was kept with "
            "--reports is found with the same --reports",
        )
    what = f" with {cell!r}" if cell else ""
    where = f"this folder{what}" if run in here else f"any folder{what}; this one has none"
    note(f"the newest check of {where}: {run.id}, {run.plan().command}")
    return run


def _with_cell(runs: Sequence[RunFolder], text: str) -> RunFolder | None:
    """Return the first run with a cell that this text names, as its whole id or else as a part."""
    from conformance.report.terminal_text import find_matches

    if not text:
        return next(iter(runs), None)
    # The plan also has the cells, and is read in a fraction of the time.
    found = zip(*(find_matches(_planned(run), text) for run in runs), strict=True)
    return next((run for cells in found for run, own in zip(runs, cells, strict=True) if own), None)


def _planned(run: RunFolder) -> tuple[Cell, ...]:
    """Return the cells of a check; none if it cannot be read."""
    try:
        return run.plan().cells
    except ConformanceError:
        return ()
