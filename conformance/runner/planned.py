"""What the runner is asked to do, and what it says at the end."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.records import Case, Group, Job
from conformance.runner.deaths import DEATHS_OF_A_CELL
from conformance.runner.timeouts import Limits


@dataclass(frozen=True)
class Launch:
    """Where a worker runs. Jobs with equal launches share one zygote.

    `preload` is the module the zygote imports before it forks; `env` is added to the
    environment.
    """

    python: Path = field(default_factory=lambda: Path(sys.executable))
    preload: str = ""
    env: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Further:
    """Cases for an engine that is open already, each of which may take so many seconds."""

    cases: tuple[Case, ...]
    seconds: float = math.inf


@dataclass(frozen=True)
class Planned:
    """One worker's job, made when those it waits for are done.

    `make` may return None: nothing to do. It is called after every job of `after` and
    `needs` has ended; when one of `needs` failed, the job's cells become errors with that
    one's words. The jobs of `needs_cells` are needed likewise, but it does not wait for their end
    where the cell (`Case.key`) that stands beside each has gone well before.
    With `cached`, finished observations come from the cache and go there.
    `folder` is the group's: there it is said when no job could be made. `limits` are its own, in
    place of those for all; `load` is how many seconds loading may take where that is more than the
    limit: a download, for one.
    A cell is given up when `tries` workers have died under it.
    `ours` is a job of the harness itself, such as the reference: what failed in it is no outcome,
    and is tried again by a resumed run.
    `at_home` is a job that must run on the machine that the run was started on.
    `follow` is called while the worker has run all of its cases: it returns further cases for the
    same engine, none to end it, or None to keep it waiting. Jobs that need this one do not wait for
    that end.
    """

    id: str
    make: Callable[[], Job | None]
    launch: Launch
    after: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    needs_cells: tuple[tuple[str, str], ...] = ()
    cached: bool = False
    folder: Path | None = None
    limits: Limits | None = None
    load: float = 0.0
    tries: int = DEATHS_OF_A_CELL
    ours: bool = False
    at_home: bool = False
    follow: Callable[[], Further | None] | None = None

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The jobs that must have begun, at least, before this one may be."""
        return (*self.after, *self.needs, *(job for job, _ in self.needs_cells))


@dataclass(frozen=True)
class Done:
    """How one planned job ended. `group` is None when nothing was to be done."""

    ok: bool
    reason: str = ""
    group: Group | None = None


@dataclass(frozen=True)
class Summary:
    """What is known of the run as a whole. `peak_mib` is of all its processes together."""

    done: Mapping[str, Done]
    seconds: float
    peak_mib: float
    interrupted: bool
    finished: int
    resumed: int


def check(planned: Sequence[Planned]) -> None:
    """Raises ConformanceError for a graph that could not be run to its end."""
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
