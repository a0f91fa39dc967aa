"""The events file of a group, in which its worker and its engine report their progress."""

from __future__ import annotations

import json
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from conformance.spec import loose_json

#: The event with which an engine reports that its probe begins, and its processes.
PROBING = "probing"


def append_event(events: Path, event: str, **details: Any) -> None:
    """Append an event to the file, opened anew because a block may have closed open files.

    It is written in one call because other processes write there too.
    """
    line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **details}
    target = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(target, json.dumps(line).encode() + b"\n")
    finally:
        os.close(target)


def find_probed(events: Path, start: int) -> frozenset[int]:
    """Return the engine's processes at the start of its probe, by events after byte `start`."""
    numbers: frozenset[int] = frozenset()
    with suppress(OSError):
        for line in events.read_bytes()[start:].splitlines():
            event: object = None
            with suppress(ValueError):
                event = loose_json.parsed(line)
            if isinstance(event, dict) and event.get("event") == PROBING:
                told = event.get("processes")
                if type(told) is list:
                    numbers = frozenset(number for number in told if type(number) is int)
    return numbers
