"""A private temporary folder for all processes of a run, removed with the run.

vLLM keeps sockets for message queues and rendezvous files in the temporary folder, and they stay
there if a process is killed. In a folder per run nobody else can reach them, and all are removed
together. Shared memory has no folders: the run's files there are identified by name, or listed in
the run's folder, and removed with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import shared_memory
from pathlib import Path

from conformance.runner.processes import sessions
from conformance.runner.processes.unquoted import name_without_quotes

#: Short, because a local socket's whole path has at most 107 characters.
PREFIX = "cfm-run-"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

#: Files in a run's folder that list its shared memory, one for each worker.
_SHARED = "shared"

#: The prefix of a folder until it is locked, and the seconds after which such a folder is swept.
_NEW, _OLD = "cfm-new-", 60.0


#: The longest path of a local socket, and the parent for a folder that must leave more room for it.
_LONGEST, _SHORT = 107, Path("/tmp")  # noqa: S108 - a folder of our own is made there


@contextmanager
def folder(room: int = 0) -> Iterator[Path]:
    """Create a folder that only this user can enter. Folders of killed runs are swept, and their
    processes ended. `room` is the length of the longest socket path below the folder.
    """
    parent = name_without_quotes(Path(tempfile.gettempdir()))
    if len(os.fsencode(parent)) + len(f"/{PREFIX}12345678/") + room > _LONGEST:
        parent = _SHORT
    elsewhere = _sweep()
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    descriptor = os.open(new, _FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # Lock before renaming: an unlocked folder with the final name belongs to a dead run.
        path = new.rename(parent / new.name.replace(_NEW, PREFIX))
        try:
            yield path
        finally:
            remove(path)
            # A process of a run that was killed just before may have kept its folder locked.
            _sweep(elsewhere)
    finally:
        os.close(descriptor)


def _own() -> Path | None:
    """Return the folder of the run that this process belongs to."""
    path = Path(os.environ.get("TMPDIR", ""))
    return path if path.name.startswith(PREFIX) else None


def hold() -> None:
    """Lock the run's folder from one of its processes, until this process and those forked from it
    have ended.
    """
    if path := _own():
        with suppress(OSError):
            fcntl.flock(os.open(path, _FOLDER), fcntl.LOCK_SH | fcntl.LOCK_NB)


def name_shared() -> None:
    """Make this process of a run, and those forked from it, name shared memory after its folder
    from the start, so that vLLM's message queues can be found even after an immediate kill.
    """
    if path := _own():
        make_name = lambda: f"/{path.name}-{secrets.token_hex(4)}"  # noqa: E731
        shared_memory._make_filename = make_name  # type: ignore[attr-defined]  # noqa: SLF001


def note_shared(names: Iterable[str]) -> None:
    """List this process's shared memory files in the run's folder."""
    if path := _own():
        with suppress(OSError):
            (path / f"{_SHARED}-{os.getpid()}").write_text("\n".join(names), encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a run's folder and its shared memory; any other path is left alone."""
    if path.name.startswith((PREFIX, _NEW)):
        for noted in path.glob(f"{_SHARED}-*"):
            with suppress(OSError, ValueError):
                sessions.unlink_shared(noted.read_text(encoding="utf-8").splitlines())
        sessions.unlink_shared(_shared_memory_of(path))
        shutil.rmtree(path, ignore_errors=True)


def _shared_memory_of(path: Path) -> list[str]:
    """Return the shared memory files named after a run's folder, or after vLLM's rendezvous file in
    it.
    """
    names = (path.name, *(entry.name for entry in path.glob("vllm_dist_*")))
    return [str(entry) for name in names for entry in Path(sessions.SHARED).glob(f"{name}-*")]


def environment(path: Path, cache: Path, device: str) -> dict[str, str]:
    """Return environment variables that move temporary files to `path`, and compiled code to
    `cache`. Compiled code is worth keeping, and other users must not be able to plant it.

    It is kept per `device`, the hardware and its selected instructions: torch would find the
    sources of another instruction set and fail to compile them.
    """
    digest = hashlib.sha256(device.encode()).hexdigest()[:12]
    kept = name_without_quotes(cache) / "inductor" / digest
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(kept))
    return {"TMPDIR": str(path), "TORCHINDUCTOR_CACHE_DIR": inductor}


def _sweep(elsewhere: Collection[Path] = ()) -> set[Path]:
    """End the processes of killed runs, and remove their folders: here, `elsewhere`, and where
    these processes have them, since they would have removed them. Return the last, for another
    sweep: a process that has not ended yet keeps its folder locked.
    """
    named = {Path(sessions.variable(pid, "TMPDIR")) for pid in sessions.orphans()}
    sessions.end_orphans()
    named = {path for path in (*elsewhere, *named) if path.name.startswith(PREFIX)}
    found = set(named)
    for parent in (Path(tempfile.gettempdir()), _SHORT):
        found |= {*parent.glob(f"{PREFIX}*"), *parent.glob(f"{_NEW}*")}
    for path in found:
        with suppress(OSError):
            status = path.lstat()
            young = path.name.startswith(_NEW) and time.time() - status.st_mtime < _OLD
            if young or status.st_uid != os.getuid():
                continue
            descriptor = os.open(path, _FOLDER)
            try:
                fcntl.flock(
                    descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB
                )  # fails if a process holds it
                remove(path)
            finally:
                os.close(descriptor)
    return named
