"""On a machine of a cluster: zygotes that outlive a group, as they do at home.

Ray runs one group after another in the same process. Importing an engine takes longer than many a
group that it is imported for.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.checkpoints import cache_folder
from conformance.processes import temporary
from conformance.runner import Limits, Planned
from conformance.runner.local import Local


class Warm(Local):
    """The processes of this machine, of which those that no group runs in are kept."""

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        """The next group will want what this one did."""

    def end(self) -> set[int]:
        """Nothing has to, where every group came to its end."""
        return self.end_all() if self.running else set()

    def end_all(self) -> set[int]:
        return super().end()


@dataclass(frozen=True)
class _Kept:
    """`gpus` are those that Ray gave the group: a zygote's variables are those it began with."""

    crew: Warm
    gpus: str | None
    folder: ExitStack


#: This process's own.
_kept: list[_Kept] = []


@contextmanager
def crew(limits: Limits, device: str) -> Iterator[Warm]:
    """For one group; not kept where that did not come to its end."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if _kept and _kept[-1].gpus != gpus:
        end()
    if not _kept:
        _kept.append(_begun(limits, device, gpus))
    kept = _kept[-1]
    try:
        yield kept.crew
    except BaseException:
        end()
        raise
    if kept.crew.running:
        end()


def end() -> None:
    """End what is kept, where something is."""
    while _kept:
        kept = _kept.pop()
        kept.crew.end_all()
        kept.folder.close()


def _begun(limits: Limits, device: str, gpus: str | None) -> _Kept:
    stack = ExitStack()
    # It goes with the zygotes, which go with this process.
    folder: Path = stack.enter_context(temporary.folder())
    places = temporary.environment(folder, cache_folder(), device)
    local = Warm(folder / "zygotes", jobs=1, limits=limits, device=device, places=places)
    return _Kept(local, gpus, stack)
