"""The events file of a group: what its worker and its engine say that they are doing."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance import loose_json

#: The event by which an engine says that it is there and is now probed, and with which processes.
PROBING = "probing"


def append_event(events: Path, event: str, **details: Any) -> None:
    """Append an event to the file. The file is opened anew, because a block may have closed what
    was open, and written in one piece, because other processes write there too.
    """
    line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **details}
    target = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(target, json.dumps(line).encode() + b"\n")
    finally:
        os.close(target)


def probed_with(events: Path, start: int) -> frozenset[int]:
    """Return the processes that an engine had as its probe began, if it said so since the events
    file had `start` bytes.
    """
    numbers: frozenset[int] = frozenset()
    for event in _events(events, start):
        if isinstance(event, dict) and event.get("event") == PROBING:
            told = event.get("processes")
            if type(told) is list:
                numbers = frozenset(number for number in told if type(number) is int)
    return numbers


def _events(events: Path, start: int) -> Iterator[object]:
    """Yield what can be read of the lines after the first `start` bytes."""
    with suppress(OSError), events.open("rb") as file:
        file.seek(start)
        for line in file.read().splitlines():
            with suppress(ValueError):
                yield loose_json.parsed(line)
