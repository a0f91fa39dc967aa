"""The environments in the cache: their contents, their sizes, and removing them."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from conformance.environments.building import STAMP, locked, read
from conformance.environments.made import InstalledEnvironment
from conformance.errors import ConformanceError
from conformance.records import record


@record()
class EnvironmentFolder:
    """An environment's folder. `environment` is None if a build was killed.

    `own_mib` is what removing it frees, `mib` its full size: most files are links to uv's cache.
    """

    id: str
    environment: InstalledEnvironment | None
    own_mib: float
    mib: float


def listed(cache: Path) -> tuple[EnvironmentFolder, ...]:
    """Return every environment in the cache, newest first."""
    return tuple(
        EnvironmentFolder(path.name, read(path), *_sizes(path)) for path in _folders(cache)
    )


def _folders(cache: Path) -> list[Path]:
    folders = [
        path
        for path in (cache / "environments").glob("*")
        if path.is_dir() and path.name not in {"locks", "own", "resolved"}
    ]
    return sorted(folders, key=lambda path: path.stat().st_mtime, reverse=True)


def measured(environment: InstalledEnvironment) -> EnvironmentFolder:
    """Return an environment's folder with its sizes."""
    return EnvironmentFolder(environment.id, environment, *_sizes(environment.python.parent.parent))


def _sizes(folder: Path) -> tuple[float, float]:
    own = whole = 0
    for place, _, files in os.walk(folder):
        for name in files:
            status = Path(place, name).lstat()
            whole += status.st_blocks * 512
            own += status.st_blocks * 512 if status.st_nlink == 1 else 0
    return own / 2**20, whole / 2**20


def remove(cache: Path, name: str) -> None:
    """Remove an environment. Raises ConformanceError if there is none of this name."""
    names = [folder.name for folder in _folders(cache)]
    if name not in names:
        remedy = f"one of: {', '.join(names) or 'none'}"
        raise ConformanceError(f"there is no environment {name!r}", remedy=remedy)
    folder = cache / "environments" / name
    with locked(folder):
        (folder / STAMP).unlink(missing_ok=True)  # first, so that no partial environment is used
        shutil.rmtree(folder)
