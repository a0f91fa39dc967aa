"""What blocks did to the processes of their engine, as these say it in the events of a group."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from conformance import loose_json
from conformance.records import Frame, Owner

#: The event by which an engine says that it is there and is now probed, and with which processes.
PROBING = "probing"


class How(StrEnum):
    """What it was: the end of a process, an exception that asks for one, something changed."""

    ENDS = "ends"
    RAISED = "raised"
    LEFT = "left"


@dataclass(frozen=True)
class Doing:
    """`words` say what; `calls` are those that led to it, as a traceback has them."""

    how: How
    words: str
    calls: str = ""
    frames: tuple[Frame, ...] = ()


def doing(event: object) -> Doing | None:
    """What an event says, None where it is no such one: a block may write there as well."""
    if not isinstance(event, dict) or event.get("event") != "did":
        return None
    with suppress(KeyError, TypeError, ValueError):
        frames = tuple(
            Frame(Owner(owner), str(file), int(line)) for owner, file, line in event["frames"]
        )
        return Doing(How(event["how"]), str(event["words"]), str(event["calls"]), frames)
    return None


def event_of(did: Doing) -> dict[str, Any]:
    """The same as an event's further words."""
    frames = [[frame.owner, frame.file, frame.line] for frame in did.frames]
    return {"how": did.how, "words": did.words, "calls": did.calls, "frames": frames}


def tell(events: Path, event: str, **details: Any) -> None:
    """Add an event to the file: opened anew, as a block may have closed what was open, and written
    in one piece, as other processes write there too.
    """
    line = {"event": event, "at": time.monotonic(), "pid": os.getpid(), **details}
    target = os.open(events, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(target, json.dumps(line).encode() + b"\n")
    finally:
        os.close(target)


def since(events: Path, start: int) -> list[Doing]:
    """All that was said since the events' file had so many bytes."""
    found = (doing(event) for event in _events(events, start))
    return [did for did in found if did is not None]


def probed_with(events: Path, start: int) -> frozenset[int]:
    """The processes that an engine had as its probe began, if it said so since the events' file had
    so many bytes.
    """
    numbers: frozenset[int] = frozenset()
    for event in _events(events, start):
        if isinstance(event, dict) and event.get("event") == PROBING:
            told = event.get("processes")
            if type(told) is list:
                numbers = frozenset(number for number in told if type(number) is int)
    return numbers


def _events(events: Path, start: int) -> Iterator[object]:
    """What can be read of the lines since the file had so many bytes."""
    with suppress(OSError), events.open("rb") as file:
        file.seek(start)
        for line in file.read().splitlines():
            with suppress(ValueError):
                yield loose_json.parsed(line)


def left_otherwise(doings: Sequence[Doing]) -> tuple[str, ...]:
    """What was changed, by its names, each once."""
    return tuple(dict.fromkeys(did.words for did in doings if did.how is How.LEFT))


def last(doings: Sequence[Doing], how: How) -> Doing | None:
    return next((did for did in reversed(doings) if did.how is how), None)
