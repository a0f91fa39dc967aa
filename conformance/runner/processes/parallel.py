"""Parallel computation in separate processes, on all cores.

Judging and reporting are millions of small operations, which threads would not speed up. The
processes come from a fork server that does nothing else: forking a process with running displays
and tensors may hang.
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

#: The cells that one process judges in the two seconds in which the server starts.
CELLS_A_PROCESS = 400

#: Modules that the server imports once for its processes.
_PRELOADED = ["conformance.judge.runs", "conformance.report.payload"]


def cores() -> int:
    """Return how many processors this process may use; all if the system does not say."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def worth(cells: int) -> int:
    """Return how many processes are worthwhile for `cells` cells; 0 instead of 1."""
    count = min(cores(), cells // CELLS_A_PROCESS)
    return count if count > 1 else 0


def prepare(cells: int) -> None:
    """Start the server early, while this process does something else."""
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
    """Yield `function` of each tuple of arguments, in order. Everything must be picklable.

    `begin` is called once in each process. An error cancels the calls that have not started, and
    running ones are not awaited.
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
    """Return a pool of processes that each call `begin` once. They end when this process ends,
    however it does.
    """
    context = get_context("forkserver")
    context.set_forkserver_preload(_PRELOADED)
    return ProcessPoolExecutor(processes, context, initializer=_begin, initargs=(begin, begin_with))


def _begin(begin: Callable[..., None] | None, begin_with: tuple[Any, ...]) -> None:
    """Ignore interrupts, which the parent handles by ending these processes.

    Disable the garbage collector: nothing here is in cycles, and searching millions of records
    takes a tenth of the time.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    gc.freeze()
    gc.disable()
    if begin is not None:
        begin(*begin_with)


def _end_with_parent() -> None:
    """End this process when the parent is killed. Nothing else notifies it, and the fork server,
    its parent for the kernel, lives as long as it does.
    """
    parent = parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
