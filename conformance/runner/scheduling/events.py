"""The events that the runner reports to a progress display."""

from __future__ import annotations

from dataclasses import dataclass

from conformance.spec.records import Status


@dataclass(frozen=True)
class GroupStarted:
    """A worker was requested; `attempt` counts from 1, `cells` are still to be run."""

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
    """A cell is finished; `reused` if that was before, in this or another run."""

    id: str
    case: str
    status: Status
    seconds: float
    reused: bool = False


@dataclass(frozen=True)
class WorkerDied:
    """A worker ended early; `case` is the cell it was running, if any."""

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
