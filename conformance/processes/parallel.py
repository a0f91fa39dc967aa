"""Many computations side by side, in processes of their own, on all cores.

Judging and reporting are millions of small operations, which threads would not speed up. The
processes come from a server that never did anything else: a fork of a process that has
displays and tensors at work may hang.
"""

from __future__ import annotations

import gc
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import forkserver, get_context, parent_process
from multiprocessing.connection import wait
from typing import Any, TypeVar

T = TypeVar("T")

#: A server takes two seconds to begin: one process does so many cells meanwhile.
CELLS_A_PROCESS = 400

#: What the server imports once, so that its processes need not.
_PRELOADED = ["conformance.judging_runs", "conformance.report.payload"]


def cores() -> int:
    """The processors that this process may use; all of them where that cannot be asked."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worth(cells: int) -> int:
    """How many processes pay for so many cells; below two, none."""
    count = min(cores(), cells // CELLS_A_PROCESS)
    return count if count > 1 else 0


def prepare(cells: int) -> None:
    """Begin the server already, while this process is busy with something else."""
    if worth(cells):
        get_context("forkserver").set_forkserver_preload(_PRELOADED)
        forkserver.ensure_running()


def side_by_side(
    function: Callable[..., T],
    arguments: Sequence[tuple[Any, ...]],
    *,
    processes: int,
    begin: Callable[..., None] | None = None,
    begin_with: tuple[Any, ...] = (),
) -> Iterator[T]:
    """`function` of each, in their order. Functions, arguments and results must be picklable.

    `begin` is called once in each process. An error ends all of it: what has not begun is
    left, and nothing is waited for.
    """
    with pool_of(processes, begin, begin_with) as pool:
        waiting = [pool.submit(function, *call) for call in arguments]
        try:
            for future in waiting:
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def pool_of(
    processes: int, begin: Callable[..., None] | None = None, begin_with: tuple[Any, ...] = ()
) -> ProcessPoolExecutor:
    """So many processes, each of which calls `begin` once. They end with this one, however it
    ends.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(begin, begin_with))


def _begin(begin: Callable[..., None] | None, begin_with: tuple[Any, ...]) -> None:
    """An interrupt is the parent's to act on; it ends these.

    Nothing here is in cycles, and looking for some among millions of records takes a tenth
    of the time.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()
    gc.disable()
    if begin is not None:
        begin(*begin_with)


def _end_with_parent() -> None:
    """A process that waits for work is told by nobody that the one that has it was killed; and
    the server, its parent for the kernel, lives as long as it does.
    """
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
