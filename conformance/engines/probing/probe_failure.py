"""An error that stops every trace of an engine, found with the probe prompt.

The engine stays open: its results without nnsight show who has to fix the error.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any

from conformance.engines import Refused, Unreadable
from conformance.runner.processes import sessions
from conformance.runner.store import GroupFolder, event_log
from conformance.spec.builtin.engine_alone import GENERATED
from conformance.spec.records import Job, Status
from conformance.spec.scenario import Scenario

if TYPE_CHECKING:  # these import torch
    from conformance.engines.traced import Probe
    from conformance.spec.residual_stream import Settled


@dataclass(frozen=True)
class Obstacle:
    """An error that any trace would raise, with the traceback of its first occurrence."""

    error: Exception
    traceback: TracebackType | None

    @property
    def status(self) -> Status:
        """The group's status. A refusal is the engine's answer, not a failure to load."""
        if isinstance(self.error, Refused):
            return Status.OK
        return Status.STRUCTURE if isinstance(self.error, Unreadable) else Status.ERROR

    @property
    def reason(self) -> str:
        plain = isinstance(self.error, Refused | Unreadable)
        return str(self.error) if plain else f"{type(self.error).__name__}: {self.error}"


def tell_probing(job: Job, computing: Iterable[int] = ()) -> None:
    """Write to the events file that the engine has started, with its processes, and is being
    probed. Observers of a run see no other sign of that. The runner counts probing as loading.

    `computing` are the processes that compute the model. They and the processes between them and
    this one form the engine. Other processes of the session, such as torch's compile workers, may
    end without harm.
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
    """Determine the stream's layout from the layers' outputs on the probe prompt. Return the
    obstacle with it if no layout fits or the trace failed.
    """
    from conformance.engines.structure import map_tensors
    from conformance.spec.residual_stream import Settled, settle

    try:
        near = [map_tensors(output, lambda part: part.detach().cpu()) for output in outputs()]
        settled = settle(near, probe.streams, probe.noise, pinned)
    except Exception as error:  # noqa: BLE001 - a trace can raise anything
        obstacle = Obstacle(refused(error) or error, error.__traceback__)
        return Settled("", reason=obstacle.reason), obstacle
    if settled.layout:
        return settled, None
    return settled, Obstacle(Unreadable(settled.reason), None)


def stop_at(obstacle: Obstacle | None, scenario: Scenario) -> None:
    """Raise the obstacle, if there is one, unless the scenario only generates without a trace."""
    if obstacle is not None and scenario.name != GENERATED.name:
        raise obstacle.error.with_traceback(obstacle.traceback)
