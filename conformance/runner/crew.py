"""Where the groups of a run are run: the seam between a run's order and the machines that work."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from conformance.runner.group import GroupRun
from conformance.runner.planned import Planned
from conformance.store import ObservationCache


class Crew(Protocol):
    """Whoever runs groups: processes of this machine (`local.py`), or the machines of a cluster.

    A group that was begun is given back by `work` once, when it has ended and each of its cells
    has an outcome.
    """

    @property
    def peak_mib(self) -> float:
        """Most memory of all its processes together, 0 where that is not known."""
        ...

    def has_room_for(self, planned: Planned) -> bool:
        """Whether a group may be begun now."""
        ...

    def reuse(self, group: GroupRun, cache: ObservationCache | None) -> None:
        """Have the group take what was finished before on hardware on which it may run here.

        Raises ConformanceError as `GroupRun.reuse` does.
        """
        ...

    def prepare(self, waiting: Sequence[Planned]) -> None:
        """These will be begun, in this order: what takes long may be made ready for them."""
        ...

    def begin(self, group: GroupRun) -> None: ...

    def work(self) -> list[GroupRun]:
        """Go on for a moment; the groups that have ended in it."""
        ...

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        """These are all that wait or run: what no other one needs may go."""
        ...

    def end(self) -> set[int]:
        """End everything that runs, having heard what it finished; processes that cannot be."""
        ...
