"""On a machine of a cluster: zygotes that outlive a group, as on the driver.

Ray runs one group after another in the same process, and importing an engine takes longer than many
groups do.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from conformance.checkpoints import cache_folder
from conformance.processes import temporary
from conformance.runner import Planned, TimeLimits
from conformance.runner.local import Local


class Warm(Local):
    """This machine's workers; idle zygotes are kept."""

    def keep_only(self, wanted: Sequence[Planned]) -> None:
        """Keep all zygotes: the next group will probably need the same ones."""

    def end(self) -> set[int]:
        """Do nothing if all groups have ended."""
        return self.end_all() if self.running else set()

    def end_all(self) -> set[int]:
        return super().end()


@dataclass(frozen=True)
class _Kept:
    """The kept processes. `gpus` are Ray's allocation, which a zygote's variables keep."""

    workers: Warm
    gpus: str | None
    folder: ExitStack


#: The processes kept by this process.
_kept: list[_Kept] = []


@contextmanager
def worker_pool(limits: TimeLimits, device: str) -> Iterator[Warm]:
    """Provide the kept processes for one group; end them if the group does not finish."""
    gpus = os.environ.get("CUDA_VISIBLE_DEVICES")
    if _kept and _kept[-1].gpus != gpus:
        end()
    if not _kept:
        _kept.append(_begun(limits, device, gpus))
    kept = _kept[-1]
    try:
        yield kept.workers
    except BaseException:
        end()
        raise
    if kept.workers.running:
        end()


def end() -> None:
    """End the kept processes, if any."""
    while _kept:
        kept = _kept.pop()
        kept.workers.end_all()
        kept.folder.close()


def _begun(limits: TimeLimits, device: str, gpus: str | None) -> _Kept:
    stack = ExitStack()
    # Ends with the zygotes, which end with this process.
    folder: Path = stack.enter_context(temporary.folder())
    places = temporary.environment(folder, cache_folder(), device)
    local = Warm(folder / "zygotes", jobs=1, limits=limits, device=device, places=places)
    return _Kept(local, gpus, stack)
