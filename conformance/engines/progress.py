"""Progress of a running case for the runner: each trace restarts the cell's time limit.

A case may run hundreds of traces, which takes minutes on a slow processor; a hanging trace is still
found in the usual time. Only a limited number is reported, so an endless loop times out too.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conformance.runner.store import event_log

#: More traces than any scenario has. If they are quick, an endless loop still ends soon.
MOST = 100

#: One (events file, key of the running case) for each report that is left.
_running: list[tuple[Path, str]] = []


@contextmanager
def of(events: Path, case: str) -> Iterator[None]:
    """Report the progress of this case inside the with block."""
    _running[:] = [(events, case)] * MOST
    try:
        yield
    finally:
        _running.clear()


def trace_begins() -> None:
    """Report that a trace begins; does nothing if no case runs, as in a probe."""
    if _running:
        events, case = _running.pop()
        with suppress(OSError):
            event_log.append_event(events, "again", case=case)
