"""Make folders of the cache that are complete or absent, even if several processes make them."""

from __future__ import annotations

import fcntl
import hashlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

#: Folders of a killed builder are removed after this many seconds.
ABANDONED = 24 * 3600.0


@contextmanager
def building(final: Path) -> Iterator[Path]:
    """Give an empty folder next to `final`, after removing those that killed builders left."""
    final.parent.mkdir(parents=True, exist_ok=True)
    for path in final.parent.glob(".building-*"):
        with suppress(FileNotFoundError):
            if time.time() - path.stat().st_mtime > ABANDONED:
                shutil.rmtree(path, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=final.parent, prefix=".building-") as temporary:
        yield Path(temporary)


def publish(folder: Path, final: Path, whole: Callable[[], bool]) -> None:
    """Rename `folder` to `final`, safely with concurrent builders.

    If `final` is intact, another builder put it there and may be using it: it stays. A damaged one
    is moved away first, because a rename cannot replace a folder with contents.
    """
    with (final.parent / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if whole():
            return
        if final.exists():
            damaged = folder.with_name(f"{folder.name}-damaged")
            final.rename(damaged)
            shutil.rmtree(damaged)
        folder.rename(final)


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
