"""The parent process of a run: starts, watches, kills and restarts workers, and resumes runs.

    summary = run(planned, logs=run_folder.path / "zygotes", jobs=2, limits=TimeLimits(),
                  device="cpu", cache=ObservationCache(folder), on_event=print)

It needs none of the engines installed. Observations are in the jobs' folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.runner.processes import lock, temporary
from conformance.runner.scheduling.events import (
    CellFinished,
    CellStarted,
    Event,
    GroupFinished,
    GroupLoaded,
    GroupStarted,
    WorkerDied,
)
from conformance.runner.scheduling.local import Local
from conformance.runner.scheduling.loop import Runner, WorkerPool
from conformance.runner.scheduling.planned import Further, Launch, Planned, RunSummary
from conformance.runner.scheduling.time_limits import TimeLimits
from conformance.runner.store import ObservationCache
from conformance.spec.checkpoints import cache_folder

__all__ = [
    "Allocate",
    "CellFinished",
    "CellStarted",
    "Event",
    "Further",
    "GroupFinished",
    "GroupLoaded",
    "GroupStarted",
    "Launch",
    "Planned",
    "RunSummary",
    "TimeLimits",
    "WorkerDied",
    "WorkerPool",
    "run",
]

#: Takes what runs groups on this machine, and returns what runs them instead.
Allocate = Callable[[WorkerPool], WorkerPool]


def run(
    planned: Sequence[Planned],
    *,
    logs: Path,
    jobs: int = 1,
    limits: TimeLimits | None = None,
    device: str = "cpu",
    cache: ObservationCache | None = None,
    on_event: Callable[[Event], None] = lambda _: None,
    allocate: Allocate | None = None,
) -> RunSummary:
    """Run every planned job, at most `jobs` at a time; Ctrl-C ends it early and cleanly.

    Afterwards every case of every job has an outcome, unless `RunSummary.interrupted`, and no
    process of the run is left. Cells with an outcome in their folder are not run again. `device`
    names the hardware in the cache's keys. `allocate` can run the groups elsewhere; this machine
    still runs jobs that must stay on it. Raises ConformanceError for a graph that cannot be run, a
    run that another process is working on, and processes that cannot be ended.
    """
    # Two runners in one folder would confuse their workers.
    with lock.hold_lock(logs / "lock", logs.parent, "run"), temporary.folder() as folder:
        local = Local(
            logs,
            jobs=jobs,
            limits=limits or TimeLimits(),
            device=device,
            places=temporary.environment(folder, cache_folder(), device),
        )
        workers = allocate(local) if allocate else local
        return Runner(planned, workers=workers, cache=cache, on_event=on_event).run()
