"""Select old runs and cached observations by age and size, and remove them."""

from __future__ import annotations

import math
import os
import secrets
import shutil
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from conformance.runner.store.folder import UNFINISHED

DAY = 86_400.0


@dataclass(frozen=True)
class Item:
    """A run or a cached observation: path, bytes on disk, and when made or last used (epoch)."""

    path: Path
    size: int
    used: float


@dataclass(frozen=True)
class RetentionLimits:
    """What is kept: the `newest` items, whatever their size, and others used within `days`, while
    all together take at most `room` bytes.
    """

    days: float
    room: int
    newest: int = 0


#: For checks without a named folder: each holds everything that every layer computed.
CHECKS = RetentionLimits(days=math.inf, room=4 << 30, newest=3)

#: For cached observations, which a run computes again without them.
OBSERVATIONS = RetentionLimits(days=30, room=10 << 30)

#: The same rule, for the message about a missing check.
CHECKS_RULE = (
    f"the newest {CHECKS.newest} on this machine are kept, and older ones as long as all take no "
    f"more than {CHECKS.room >> 30} GiB; one that was kept with --reports DIR is there for good: "
    "name DIR"
)


def sweep(items: Sequence[Item], limits: RetentionLimits) -> None:
    """Remove the items beyond these limits from a list with the newest first."""
    for item in select_superfluous(items, limits, time.time()):
        remove(item)


def sweep_observations(cache: Path) -> None:
    """Remove cached observations beyond their limits. It takes as long as the cache is big."""
    sweep(observations(cache / "observations"), OBSERVATIONS)


def runs(reports: Path) -> list[Item]:
    """Return the finished runs of a folder, the newest first, without unfinished ones."""
    return _newest_first(
        Item(path, measure(path), (path / "plan.json").stat().st_mtime)
        for path in _folders(reports)
        if (path / "plan.json").is_file() and not (path / UNFINISHED).exists()
    )


def observations(cache: Path) -> list[Item]:
    """Return the cached observations, last used first, and leftovers of killed processes."""
    entries = [
        entry
        for shelf in _folders(cache)
        for entry in ([shelf] if shelf.name.startswith(".") else _folders(shelf))
    ]
    found = []
    for entry in entries:
        with suppress(OSError):  # another process has just removed it
            found.append(Item(entry, measure(entry), entry.stat().st_mtime))
    return _newest_first(found)


def _newest_first(items: Iterable[Item]) -> list[Item]:
    return sorted(items, key=lambda item: (item.used, item.path.name), reverse=True)


def select_superfluous(items: Sequence[Item], limits: RetentionLimits, now: float) -> list[Item]:
    """Return the items to remove from a list with the newest first."""
    left, gone = 0, []
    for index, item in enumerate(items):
        old = now - item.used > limits.days * DAY
        if index >= limits.newest and (old or left + item.size > limits.room):
            gone.append(item)
        else:
            left += item.size
    return gone


def remove(item: Item) -> None:
    """Remove an item, renaming it first so that nobody finds half of it."""
    aside = item.path.with_name(f".{secrets.token_hex(8)}.part")
    with suppress(OSError):
        item.path.rename(aside)
        shutil.rmtree(aside, ignore_errors=True)


def measure(folder: Path) -> int:
    """Return the bytes that a folder takes on disk; targets of links are not counted."""
    size = 0
    for place, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                size += Path(place, name).lstat().st_blocks * 512
    return size


def _folders(place: Path) -> Iterator[Path]:
    if place.is_dir():
        yield from (path for path in place.iterdir() if path.is_dir() and not path.is_symlink())
