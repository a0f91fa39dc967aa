"""Upload of the folders and files that a group reads, through Ray's object store.

A checkpoint is uploaded once for all groups of its model, and each machine downloads it once, into
its cache, under the driver's name for it. If the machines share a file system, it is used in place.
Everything else is small and unpacked for each group.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any

from conformance.spec import checkpoints
from conformance.spec.records import Job
from conformance.spec.scenario import folders_of

#: The bytes per piece: a whole checkpoint may not fit into memory.
PIECE = 64 << 20

#: Folders that no scenario reads and that may be large.
_LEFT = {"__pycache__", ".git"}

#: Returns uploaded content.
Get = Callable[[Any], bytes]

#: `path` on the driver, and for each file its path below it ("" for itself), time and pieces.
Packed = dict[str, Any]


def places(job: Job) -> tuple[Path, ...]:
    """Return the paths that the job's workers read, other than the checkpoint."""
    probe = () if job.probe is None else (job.probe,)
    observed = tuple(Path(case.observed) for case in job.cases if case.observed)
    return tuple(dict.fromkeys((*folders_of(job.scenarios), *probe, *observed)))


def move_inputs(job: Job, where: Mapping[Path, Path]) -> Job:
    """Return the job with its inputs at other paths."""
    folders = tuple(where[path] for path in folders_of(job.scenarios))
    return replace(
        job,
        checkpoint=where[job.checkpoint],
        scenarios=folders if isinstance(job.scenarios, tuple) else folders[0],
        probe=None if job.probe is None else where[job.probe],
        cases=tuple(
            replace(case, observed=str(where[Path(case.observed)])) if case.observed else case
            for case in job.cases
        ),
    )


def size(path: Path) -> int:
    return sum(file.stat().st_size for file in _files(path))


def pack(path: Path, put: Callable[[bytes], Any]) -> Packed:
    """Upload this folder or file: pass its contents to `put`, which returns references."""
    files = []
    for file in _files(path):
        relative = "" if file == path else file.relative_to(path).as_posix()
        with file.open("rb") as opened:
            pieces = [put(piece) for piece in iter(partial(opened.read, PIECE), b"")]
        files.append((relative, file.stat().st_mtime_ns, pieces))
    return {"path": str(path), "files": files}


def unpack(packed: Packed, target: Path, get: Get) -> None:
    """Write an upload to `target`. Times are kept, since a checkpoint's seal contains them."""
    if not packed["files"]:
        target.mkdir(parents=True, exist_ok=True)
    for relative, mtime, pieces in packed["files"]:
        if PurePosixPath(relative).is_absolute() or ".." in PurePosixPath(relative).parts:
            raise ValueError(f"a file of {packed['path']} would lie elsewhere: {relative}")
        file = target / relative if relative else target
        file.parent.mkdir(parents=True, exist_ok=True)
        with file.open("wb") as opened:
            for piece in pieces:
                opened.write(get(piece))
        os.utime(file, ns=(mtime, mtime))


def checkpoint(at_home: Path, digest: str, packed: Packed, cache: Path, get: Get) -> Path:
    """Return the checkpoint with this digest: at the driver's path if it is there, or cached."""
    for place in (at_home, cache / "checkpoints" / at_home.name):
        found = checkpoints.find_checkpoint(place)
        if found is not None and found.digest == digest:
            return place
    return checkpoints.store(at_home.name, cache, lambda folder: unpack(packed, folder, get))


def _files(path: Path) -> Sequence[Path]:
    if path.is_file():
        return [path]
    return sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and not _LEFT.intersection(file.relative_to(path).parts)
    )
