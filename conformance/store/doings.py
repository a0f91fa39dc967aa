"""What blocks did to the processes of their engine, as these say it in the events of a group."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from conformance import loose_json
from conformance.records import Frame, Owner


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
    doings: list[Doing] = []
    with suppress(OSError), events.open("rb") as file:
        file.seek(start)
        for line in file.read().splitlines():
            with suppress(ValueError):
                if (did := doing(loose_json.parsed(line))) is not None:
                    doings.append(did)
    return doings


def left_otherwise(doings: Sequence[Doing]) -> tuple[str, ...]:
    """What was changed, by its names, each once."""
    return tuple(dict.fromkeys(did.words for did in doings if did.how is How.LEFT))


def last(doings: Sequence[Doing], how: How) -> Doing | None:
    return next((did for did in reversed(doings) if did.how is how), None)
