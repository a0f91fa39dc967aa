"""What keeps every trace of an engine from running, found out on the probe prompt.

The engine stays open all the same: what it does without nnsight tells whose fault it is.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from conformance.builtin.engine_alone import GENERATED
from conformance.engines import Refused, Unreadable
from conformance.processes import sessions
from conformance.records import Job, Status
from conformance.scenario import Scenario
from conformance.store import GroupFolder, event_log

if TYPE_CHECKING:  # both import torch
    from conformance.engines.traced import Probe
    from conformance.residual_stream import Settled


@dataclass(frozen=True)
class Obstacle:
    """An error that any trace would meet, with the traceback of when it was first met."""

    error: Exception
    traceback: TracebackType | None

    @property
    def status(self) -> Status:
        """Of the group. A refusal is the engine's answer, not a failure to load."""
        if isinstance(self.error, Refused):
            return Status.OK
        return Status.STRUCTURE if isinstance(self.error, Unreadable) else Status.ERROR

    @property
    def reason(self) -> str:
        plain = isinstance(self.error, Refused | Unreadable)
        return str(self.error) if plain else f"{type(self.error).__name__}: {self.error}"


def tell_probing(job: Job, computing: Iterable[int] = ()) -> None:
    """Say in the events that the engine is there, with which processes, and is now probed: whoever
    watches a run, or disturbs it, sees no other sign of that. The runner takes it for a part of
    loading.

    `computing` are the processes that compute the model; with those between them and this one they
    are the engine. Whoever else is in the session helps, as those do that torch compiles with, and
    may go without any harm.
    """
    processes = sorted(sessions.between(os.getpid(), computing))
    with suppress(OSError):
        event_log.append_event(
            GroupFolder(job.folder).events, event_log.PROBING, processes=processes
        )


def probed(
    outputs: Callable[[], Sequence[Any]],
    probe: Probe,
    pinned: str,
    refused: Callable[[BaseException], Refused | None] = lambda _: None,
) -> tuple[Settled, Obstacle | None]:
    """The layout of the stream by the layers' outputs on the probe prompt, or the obstacle:
    no layout fits, or the trace itself failed.
    """
    from conformance.engines.traced import settle_layout
    from conformance.residual_stream import Settled

    try:
        settled = settle_layout(outputs(), probe, pinned)
    except Exception as error:  # noqa: BLE001 - whatever a trace can raise
        obstacle = Obstacle(refused(error) or error, error.__traceback__)
        return Settled("", reason=obstacle.reason), obstacle
    if settled.layout:
        return settled, None
    return settled, Obstacle(Unreadable(settled.reason), None)


def stop_at(obstacle: Obstacle | None, scenario: Scenario) -> None:
    """Raise the obstacle, unless there is none or the engine only generates by itself."""
    if obstacle is not None and scenario.name != GENERATED.name:
        raise obstacle.error.with_traceback(obstacle.traceback)
