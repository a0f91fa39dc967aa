"""What the runner tells a progress display while it works."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.records import Status


@dataclass(frozen=True)
class GroupStarted:
    """A worker was asked for; `attempt` counts from 1, `cells` are still to be run."""

    id: str
    model: str
    backend: str
    cells: int
    attempt: int


@dataclass(frozen=True)
class GroupLoaded:
    id: str
    seconds: float


@dataclass(frozen=True)
class CellStarted:
    id: str
    case: str


@dataclass(frozen=True)
class CellFinished:
    """`reused`: it was finished before, in this run or in another one."""

    id: str
    case: str
    status: Status
    seconds: float
    reused: bool = False


@dataclass(frozen=True)
class WorkerDied:
    """A worker ended before its time; `case` is the cell it was running, if any."""

    id: str
    case: str
    status: Status
    reason: str


@dataclass(frozen=True)
class GroupFinished:
    id: str
    ok: bool
    reason: str
    reused: bool


Event = GroupStarted | GroupLoaded | CellStarted | CellFinished | WorkerDied | GroupFinished
