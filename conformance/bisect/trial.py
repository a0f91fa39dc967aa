"""Run one trial of a candidate: build its environment and run the selected cells in it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from conformance import environments, execution
from conformance.bisect.history.candidates import Candidate, requirements
from conformance.bisect.signature import Signatures, UnusableRun, signatures
from conformance.bisect.state import BisectFolder, CandidateTrial
from conformance.environments import EnginesMoved, InstalledEnvironment, Untestable
from conformance.environments.resolving import NEEDS
from conformance.planning.trust import Executed, of_plan
from conformance.runner import Event, TimeLimits
from conformance.scenario import Scenario
from conformance.store import RunPlan, read_plan
from conformance.store.files import write_record

CELLS = "cells.json"
RUNS = "runs"


class Observed(NamedTuple):
    """The result of one environment, and the run it came from."""

    result: Signatures | UnusableRun
    run: str = ""


#: Runs cells in an environment; if the second argument is true, the cache is not used.
Observe = Callable[[InstalledEnvironment, bool], Observed]


def attempt(
    candidate: Candidate,
    observe: Observe,
    *,
    again: bool,
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
    observed = observe(environment, again)
    built_attempt = CandidateTrial(
        candidate.key,
        environment=environment.id,
        versions=dict(environment.versions),
        built=not environment.reused,
        build_seconds=environment.seconds,
        seconds=time.monotonic() - begun,
        run=observed.run,
    )
    if isinstance(observed.result, UnusableRun):
        return replace(
            built_attempt, untestable=observed.result.reason, harness=observed.result.harness
        )
    return replace(built_attempt, signatures=observed.result)


def write_cells(folder: BisectFolder, plan: RunPlan) -> None:
    write_record(folder.path / CELLS, plan)


def read_cells(folder: BisectFolder) -> RunPlan | None:
    return read_plan(folder.path / CELLS)


def executed(folder: BisectFolder) -> Executed:
    """Return what continuing this bisect executes and installs."""
    plan = read_cells(folder)
    wanted = requirements(folder.read().candidates)
    return Executed(requirements=wanted) if plan is None else of_plan(plan, wanted)


def run_cells(
    folder: BisectFolder,
    plan: RunPlan,
    environment: InstalledEnvironment,
    scenarios: dict[str, Scenario],
    *,
    fresh: bool,
    cache: Path,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
) -> Observed:
    """Run the plan's cells with every column in this environment. The reference stays in ours.

    With `fresh` nothing comes from the observation cache. Raises KeyboardInterrupt when the run is
    interrupted.
    """
    columns = tuple(replace(column, python=str(environment.python)) for column in plan.columns)
    finished = execution.once_more(
        folder.path / RUNS,
        replace(plan, columns=columns),
        scenarios,
        fresh=fresh,
        cache=cache,
        limits=limits,
        on_event=on_event,
    )
    if finished.results is None:
        raise KeyboardInterrupt
    return Observed(signatures(finished.results), finished.folder.id)
