"""One process at a time works in a folder."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from conformance.errors import ConformanceError


@contextmanager
def alone(lock: Path, folder: Path, work: str) -> Iterator[None]:
    """Hold this lock of the folder's. Raises ConformanceError when another process has it."""
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
