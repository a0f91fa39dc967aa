"""A lock that lets one process at a time work in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.errors import ConformanceError


@contextmanager
def hold_lock(lock: Path, folder: Path, work: str) -> Iterator[None]:
    """Hold the folder's lock. Raises ConformanceError if another process holds it."""
    lock.parent.mkdir(parents=True, exist_ok=True)
    with lock.open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConformanceError(
                f"another process is working on this {work}",
                path=folder,
                remedy="wait for it, or end it; then use --resume",
            ) from error
        yield
