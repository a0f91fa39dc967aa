"""What a case has got to, told to the runner: each trace has the time limit of a cell anew.

A case may be hundreds of traces, on a slow processor minutes of them, and one that hangs is found
as soon as any other. A loop that never ends is: only so many of its traces are told.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from conformance.store import event_log

#: More than any scenario has; so many quick ones are soon through.
MOST = 100

#: The events' file and the key of the case that runs in this process, with what may still be told.
_running: list[tuple[Path, str]] = []


@contextmanager
def of(events: Path, case: str) -> Iterator[None]:
    """While this case runs."""
    _running[:] = [(events, case)] * MOST
    try:
        yield
    finally:
        _running.clear()


def trace_begins() -> None:
    """Where no case runs, such as in a probe, nothing is told."""
    if _running:
        events, case = _running.pop()
        with suppress(OSError):
            event_log.append_event(events, "again", case=case)
