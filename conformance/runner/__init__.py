"""The parent of a run: starts workers, watches, kills, restarts, resumes.

    summary = run(planned, logs=run_folder.path / "zygotes", jobs=2, limits=Limits(),
                  device="cpu", cache=ObservationCache(folder), on_event=print)

It needs none of the engines installed. What was observed is in the jobs' folders.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from conformance.checkpoints import cache_folder
from conformance.processes import lock, temporary
from conformance.runner.crew import Crew
from conformance.runner.events import (
    CellFinished,
    CellStarted,
    Event,
    GroupFinished,
    GroupLoaded,
    GroupStarted,
    WorkerDied,
)
from conformance.runner.local import Local
from conformance.runner.loop import Runner
from conformance.runner.planned import Done, Further, Launch, Planned, Summary
from conformance.runner.timeouts import Limits
from conformance.store import ObservationCache

__all__ = [
    "CellFinished",
    "CellStarted",
    "Crew",
    "Done",
    "Event",
    "Further",
    "GroupFinished",
    "GroupLoaded",
    "GroupStarted",
    "Hire",
    "Launch",
    "Limits",
    "Planned",
    "Summary",
    "WorkerDied",
    "itself",
    "run",
]


#: Gives who runs the groups, of whoever would on this machine.
Hire = Callable[[Crew], Crew]


def itself(local: Crew) -> Crew:
    """This machine alone."""
    return local


def _silent(_: Event) -> None:
    pass


def run(
    planned: Sequence[Planned],
    *,
    logs: Path,
    jobs: int = 1,
    limits: Limits | None = None,
    device: str = "cpu",
    cache: ObservationCache | None = None,
    on_event: Callable[[Event], None] = _silent,
    hire: Hire = itself,
) -> Summary:
    """Run every planned job, at most `jobs` at a time; Ctrl-C ends it early and cleanly.

    Every case of every job has an outcome afterwards, unless `Summary.interrupted`. No
    process of the run is left. Cells with an outcome in their folder are not run again.
    `device` names the hardware in the keys of the cache. `hire` has the groups run elsewhere; the
    processes of this machine are begun all the same, for what must stay on it. Raises
    ConformanceError for a graph that cannot be run, for a run that another process is working on,
    and for processes that cannot be ended.
    """
    # Two runners in one folder would take each other's workers for their own.
    with lock.alone(logs / "lock", logs.parent, "run"), temporary.folder() as folder:
        local = Local(
            logs,
            jobs=jobs,
            limits=limits or Limits(),
            device=device,
            places=temporary.environment(folder, cache_folder(), device),
        )
        return Runner(planned, crew=hire(local), cache=cache, on_event=on_event).run()
