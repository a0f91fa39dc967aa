"""Which old runs and cached observations can go, by age and size; and their removal."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.store.folder import UNFINISHED

DAY = 86_400.0


@dataclass(frozen=True)
class Item:
    """A run, or a cached observation: where it is, its bytes on the disk, and when it was made or
    last used (seconds since the epoch).
    """

    path: Path
    size: int
    used: float


@dataclass(frozen=True)
class Limits:
    """What stays: the `newest` whatever they take, and of the others what was used within so many
    `days`, as long as all together take no more than `room` bytes.
    """

    days: float
    room: int
    newest: int = 0


#: Of the checks for which no folder was named: each holds what every layer computed.
CHECKS = Limits(days=math.inf, room=4 << 30, newest=20)

#: The same as it is told to whoever looks for a check that is gone.
CHECKS_RULE = (
    f"the newest {CHECKS.newest} on this machine are kept, and older ones as long as all take no "
    f"more than {CHECKS.room >> 30} GiB; one that was kept with --reports DIR is there for good: "
    "name DIR"
)


def sweep_checks(place: Path, limits: Limits = CHECKS) -> None:
    """Remove the oldest finished checks as far as these limits say."""
    for item in superfluous(runs(place), limits, time.time()):
        remove(item)


def runs(reports: Path) -> list[Item]:
    """The finished runs of a folder, the newest first. One that is under way, or can be gone on
    with, is none of them.
    """
    found = [
        Item(path, taken(path), (path / "plan.json").stat().st_mtime)
        for path in _folders(reports)
        if (path / "plan.json").is_file() and not (path / UNFINISHED).exists()
    ]
    return sorted(found, key=lambda item: (item.used, item.path.name), reverse=True)


def observations(cache: Path) -> list[Item]:
    """The cached observations, the last used first, with what an ended process left half-made."""
    entries = [
        entry
        for shelf in _folders(cache)
        for entry in ([shelf] if shelf.name.startswith(".") else _folders(shelf))
    ]
    found = []
    for entry in entries:
        with suppress(OSError):  # another process removes it meanwhile
            found.append(Item(entry, taken(entry), entry.stat().st_mtime))
    return sorted(found, key=lambda item: (item.used, item.path.name), reverse=True)


def superfluous(items: Sequence[Item], limits: Limits, now: float) -> list[Item]:
    """The items that go, of a list with the newest first."""
    left, gone = 0, []
    for index, item in enumerate(items):
        old = now - item.used > limits.days * DAY
        if index >= limits.newest and (old or left + item.size > limits.room):
            gone.append(item)
        else:
            left += item.size
    return gone


def remove(item: Item) -> None:
    """Remove an item. It goes by one rename first: nobody finds a half of it."""
    aside = item.path.with_name(f".{secrets.token_hex(8)}.part")
    with suppress(OSError):
        item.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def taken(folder: Path) -> int:
    """The bytes that a folder takes on the disk; what a link leads to is not counted."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(place, name).lstat().st_blocks * 512
    return size


def _folders(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
