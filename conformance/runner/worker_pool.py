"""The interface between the order of a run and the machines that run its groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from conformance.runner.group import GroupRun
from conformance.runner.planned import Planned
from conformance.store import ObservationCache


class WorkerPool(Protocol):
    """What runs groups: processes of this machine (`local.py`), or the machines of a cluster.

    `work` returns each group that was begun exactly once, when it has ended and each of its cells
    has an outcome.
    """

    @property
    def peak_mib(self) -> float:
        """The peak memory of all its processes together, or 0 if unknown."""
        ...

    def has_room_for(self, planned: Planned) -> bool:
        """Return whether a group may be begun now."""
        ...

    def reuse(self, group: GroupRun, cache: ObservationCache | None) -> None:
        """Let the group reuse cells finished on hardware of a kind on which it may run.

        Raises ConformanceError as `GroupRun.reuse` does.
        """
        ...

    def prepare(self, waiting: Sequence[Planned]) -> None:
        """Pre-warm workers for these jobs, which will begin in this order."""
        ...

    def begin(self, group: GroupRun) -> None: ...

    def work(self) -> list[GroupRun]:
        """Make progress for a moment; return the groups that ended."""
        ...

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        """Release everything that these waiting and running jobs do not need."""
        ...

    def end(self) -> set[int]:
        """End everything, after reading its events; return processes that cannot be ended."""
        ...
