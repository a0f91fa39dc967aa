"""Checks on a cluster's machine that it can stand in for the driver's."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Mapping
from functools import cache
from pathlib import Path

from conformance.cluster.messages import Expected
from conformance.errors import ConformanceError
from conformance.records import Group, Outcome
from conformance.runner.reuse import NO_ROOM
from conformance.store import GroupFolder, installed, installed_in
from conformance.store.keys import files_digest

#: The free space that a group needs for its files before they are synced, and a checkpoint.
ROOM_MIB = 512

_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


@cache
def code_digest() -> str:
    """Return a digest of this package's source, without the version file that a build writes."""
    package = Path(__file__).parent.parent
    return files_digest(sorted(set(package.rglob("*.py")) - {package / "_version.py"}), package)


def lacking(expected: Expected) -> str:
    """Return how this interpreter differs from the expected one, or ""."""
    if code_digest() != expected.code:
        return "has another conformance than the one that the run was started with"
    return different(expected.versions, installed())


def other(python: Path, versions: Mapping[str, str]) -> str:
    """Return how another interpreter differs from the expected versions, or ""."""
    try:
        return different(versions, installed_in(python))
    except ConformanceError as error:
        return f"has no such environment: {error.message}: {python}"


def different(wanted: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return how an environment's versions differ from the wanted ones, or "" (pure)."""
    unlike = [
        f"{name} {there.get(name, 'missing')} instead of {version}"
        for name, version in wanted.items()
        if there.get(name) != version
    ]
    more = [f"{name} {there[name]}, which the run has not" for name in there if name not in wanted]
    words = "; ".join((*unlike, *more))
    return f"has not the environment of the run: {words}" if words else ""


def without_room(*places: Path) -> str:
    """Return which disk has too little space for a group, or ""."""
    for place in places:
        standing = next(path for path in (place, *place.absolute().parents) if path.is_dir())
        free = shutil.disk_usage(standing).free >> 20
        if free < ROOM_MIB:
            return f"has no room: {free} MiB at {place}, and a group wants {ROOM_MIB}"
    return ""


def filled_up(folder: GroupFolder) -> str:
    """Return the reason if a group's cells failed for lack of space on the machine, or ""."""
    ended: list[Outcome | Group | None] = [*map(folder.outcome, folder.finished()), folder.group()]
    reasons = (each.reason for each in ended if each and NO_ROOM.search(each.reason))
    return next((f"has no room any more: {reason}" for reason in reasons), "")


def no_room(error: OSError) -> str:
    """Return the reason if a file could not be written for lack of space, or ""."""
    return f"has no room any more: {error}" if error.errno in _FULL else ""
