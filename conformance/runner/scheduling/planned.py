"""The runner's input, planned jobs, and its result."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.runner.scheduling.deaths import DEATHS_OF_A_CELL
from conformance.runner.scheduling.time_limits import TimeLimits
from conformance.spec.records import Case, Group, Job


@dataclass(frozen=True)
class Launch:
    """How to start a worker. Jobs with equal launches share one zygote.

    `preload` is the module that the zygote imports before it forks; `env` is added to the
    environment.
    """

    python: Path = field(default_factory=lambda: Path(sys.executable))
    preload: str = ""
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Further:
    """Cases for an engine that is already open, with a time limit for each in seconds."""

    cases: tuple[Case, ...]
    seconds: float = math.inf


@dataclass(frozen=True)
class Planned:
    """One worker's job, created once the jobs it waits for are done.

    - `make` may return None: nothing to do. It is called after all jobs in `after` and `needs` have
      ended. If one of `needs` failed, this job's cells become errors with that job's message.
    - `needs_cells` are jobs that are needed too, but only until the given cell (`Case.key`)
      succeeded.
    - `cached`: finished observations come from the cache and go there.
    - `folder` is the group's, where an error of `make` is recorded.
    - `limits` replace the run's limits; `load` raises the limit for loading, such as for a
      download.
    - `tries`: a cell is given up when this many workers have died in it.
    - `ours` marks a job of the harness, such as the reference: a resumed run retries its failures.
    - `at_home` marks a job that must run on the machine on which the run was started.
    - `follow` is called while the worker is idle: it returns further cases for the same engine,
      none to end it, or None to keep it waiting. Jobs that need this one do not wait for that end.
    """

    id: str
    make: Callable[[], Job | None]
    launch: Launch
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_cells: tuple[tuple[str, str], ...] = ()
    cached: bool = False
    folder: Path | None = None
    limits: TimeLimits | None = None
    load: float = 0.0
    tries: int = DEATHS_OF_A_CELL
    ours: bool = False
    at_home: bool = False
    follow: Callable[[], Further | None] | None = None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The jobs that must have begun, at least, before this one may begin."""
        return (*self.after, *self.needs, *(job for job, _ in self.needs_cells))


@dataclass(frozen=True)
class Done:
    """The result of one planned job. `group` is None if there was nothing to do."""

    ok: bool
    reason: str = ""
    group: Group | None = None


@dataclass(frozen=True)
class RunSummary:
    """The result of a whole run. `peak_mib` is the peak memory of all its processes together."""

    done: Mapping[str, Done]
    seconds: float
    peak_mib: float
    interrupted: bool
    finished: int
    resumed: int


def check(planned: Sequence[Planned]) -> None:
    """Raise ConformanceError if the graph of jobs cannot be completed."""
    names = {group.id for group in planned}
    if len(names) != len(planned):
        raise ConformanceError("two planned jobs have the same id")
    placed: set[str] = set()
    waiting = list(planned)
    while waiting:
        ready = [group for group in waiting if placed.issuperset(group.waits_for)]
        if not ready:
            stuck = ", ".join(group.id for group in waiting)
            raise ConformanceError(f"these jobs wait for each other or for none: {stuck}")
        placed.update(group.id for group in ready)
        waiting = [group for group in waiting if group.id not in placed]
