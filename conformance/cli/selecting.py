"""From options to runs."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from conformance.cli.options import Choice, Running, err, out
from conformance.errors import ConformanceError, ExitCode
from conformance.planning.selection import Selected, expected, select
from conformance.records import Thresholds

if TYPE_CHECKING:
    from conformance.expectations import Known
    from conformance.records import Results
    from conformance.repro.rerun import Recorded
    from conformance.scenario import Places
    from conformance.store import RunFolder, RunPlan


def today() -> date:
    return datetime.now(UTC).date()


def begun(reports: Path, scenarios: Places, selected: Selected, running: Running) -> RunFolder:
    """A new run's folder with its plan."""
    from conformance import execution

    return execution.begin(
        reports,
        *selected,
        scenarios=scenarios,
        thresholds=Thresholds(),
        precisions=running.precisions,
        jobs=running.groups,
    )


def new_run(reports: Path, choice: Choice, running: Running) -> RunFolder:
    """A new run's folder with the plan of what the options ask for. Environments are built."""
    from conformance.cli.verbs.environments import had

    return begun(reports, choice.scenarios, select(choice, had), running)


def executed(
    folder: RunFolder,
    scenarios: Places,
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
    with Progress(cells, out, precisions=plan.precisions) as progress:
        finished = execution.execute(
            folder,
            discover(scenarios),
            cache=cache_folder(),
            limits=running.limits,
            jobs=running.groups,
            on_event=progress,
            known=known,
            tell=progress.note,
        )
    if finished.results is None or finished.page is None:
        err.print(f"interrupted; go on with: conformance {verb} --resume {folder.id}")
        raise typer.Exit(ExitCode.INTERRUPTED)
    return finished.results, finished.page


def to_resume(reports: Path, name: str, choice: Choice, *, trust: bool) -> RunFolder:
    """A stored run whose plan is to be executed. Raises ConformanceError where that would execute
    what neither the installation nor the command line names, unless there is `trust`.
    """
    from conformance.store import CHECK

    folder = open_run(reports, name)
    if (folder.path / CHECK).is_file():
        command = folder.plan().command
        raise ConformanceError("is no run but a check", path=folder.path, remedy=command)
    if not trust:
        check_trust(folder.plan(), folder.path, choice)
    err.print(f"going on with {folder.id}", highlight=False)
    return folder


def check_trust(plan: RunPlan, path: Path, choice: Choice) -> None:
    from conformance.checkpoints import cache_folder
    from conformance.planning import trust

    trust.check(
        plan, path, scenarios=choice.scenarios, manifest=choice.manifest, cache=cache_folder()
    )


def check_script(recorded: Recorded, path: Path, manifest: Path) -> None:
    """Raises ConformanceError where a script of this cell would start, or load, what neither the
    installation nor `manifest` names.
    """
    from conformance.checkpoints import cache_folder
    from conformance.planning import trust

    trust.check_script(
        recorded.model, recorded.columns, path, manifest=manifest, cache=cache_folder()
    )


def checks() -> Path:
    """Where `conformance check` keeps what it saw, unless a folder is named."""
    from conformance.checkpoints import cache_folder

    return cache_folder() / "checks"


def open_run(reports: Path, name: str) -> RunFolder:
    """A run by its name; `check` is the newest check, and a check has a name too."""
    from conformance import store

    if name == "check":
        return newest_check()
    if not name or (reports / name).is_dir():
        return store.open_run(reports, name)
    if (checks() / name).is_dir():
        return store.open_run(checks(), name)
    try:
        return store.open_run(reports, name)
    except ConformanceError as error:
        from conformance.check.room import RULE

        remedy = f"{error.remedy}; was it a check? {RULE}"
        raise ConformanceError(error.message, path=error.path, remedy=remedy) from None


def newest_check() -> RunFolder:
    """The newest check that was made in the current folder, or else in any, which is said.

    Raises ConformanceError where there is none.
    """
    from conformance.store import RunFolder

    ended = [
        path
        for path in checks().glob("*")
        if not path.is_symlink() and (path / "results.json").is_file()
    ]
    if not ended:
        raise ConformanceError(
            "there is no check", path=checks(), remedy="make one: conformance check FILE -m MODEL"
        )
    here = [path for path in ended if _made_in(path) == str(Path.cwd())]
    run = RunFolder(max(here or ended, key=lambda path: path.name))
    where = "this folder" if here else "any folder; none was made in this one"
    words = f"the newest check of {where}: {run.id}, {run.plan().command}"
    err.print(words, markup=False, highlight=False, soft_wrap=True)
    return run


def _made_in(check: Path) -> str:
    """The folder in which a check was asked for, "" where it does not say."""
    from conformance.store import CHECK

    try:
        return str(json.loads((check / CHECK).read_bytes())["folder"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""
