"""A private temporary folder for all processes of a run, gone when the run is.

vLLM's message queues are sockets, and its meeting points files, in the temporary folder; they
stay there when a process is killed. In a folder of the run's own nobody else can reach them
while they are there, and all are removed together. Shared memory has one place for all: what of
it is the run's is known by its name, or noted in the folder, and goes with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import shared_memory
from pathlib import Path

from conformance.processes import sessions

#: Short, because a local socket's whole path has at most 107 characters.
PREFIX = "cfm-run-"

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW

#: Files of a run's folder that note what is in shared memory, one for each worker.
_SHARED = "shared"

#: What a folder is called until it is held, and after how many seconds such a one is swept.
_NEW, _OLD = "cfm-new-", 60.0


#: The longest path of a local socket, and where a folder is made that must leave more of it free.
_LONGEST, _SHORT = 107, Path("/tmp")  # noqa: S108 - a folder of our own is made there


@contextmanager
def folder(room: int = 0) -> Iterator[Path]:
    """A folder that only this user can enter. Those of runs that were killed are swept, and what is
    left of their processes is ended. `room` is how long the path of a socket may be below it.
    """
    parent = Path(tempfile.gettempdir())
    if len(os.fsencode(parent)) + len(f"/{PREFIX}12345678/") + room > _LONGEST:
        parent = _SHORT
    _sweep()
    new = Path(tempfile.mkdtemp(prefix=_NEW, dir=parent))
    descriptor = os.open(new, _FOLDER)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH)
        # Held before it has its name: a folder of that name that nobody holds is a dead run's.
        path = new.rename(parent / new.name.replace(_NEW, PREFIX))
        try:
            yield path
        finally:
            remove(path)
            # A process of a run that was killed just before this one may have held on to its own.
            _sweep()
    finally:
        os.close(descriptor)


def hold() -> None:
    """From a process of a run: its folder is in use until this process, and those forked from it,
    have ended.
    """
    path = Path(os.environ.get("TMPDIR", ""))
    if path.name.startswith(PREFIX):
        with suppress(OSError):
            fcntl.flock(os.open(path, _FOLDER), fcntl.LOCK_SH | fcntl.LOCK_NB)


def name_shared() -> None:
    """From a process of a run: what it and those forked from it put into shared memory, such as
    vLLM's message queues, has the folder's name from its first moment: a kill may come in the next.
    """
    name = Path(os.environ.get("TMPDIR", "")).name
    if name.startswith(PREFIX):
        make_name = lambda: f"/{name}-{secrets.token_hex(4)}"  # noqa: E731
        shared_memory._make_filename = make_name  # type: ignore[attr-defined]  # noqa: SLF001


def note_shared(names: Iterable[str]) -> None:
    """From a process of a run: these are the run's files in shared memory."""
    path = Path(os.environ.get("TMPDIR", ""))
    if path.name.startswith(PREFIX):
        with suppress(OSError):
            (path / f"{_SHARED}-{os.getpid()}").write_text("\n".join(names), encoding="utf-8")


def remove(path: Path) -> None:
    """Remove a run's folder and its shared memory; anything else stays."""
    if path.name.startswith((PREFIX, _NEW)):
        for noted in path.glob(f"{_SHARED}-*"):
            with suppress(OSError, ValueError):
                sessions.unlink_shared(noted.read_text(encoding="utf-8").splitlines())
        sessions.unlink_shared(_shared_memory_of(path))
        shutil.rmtree(path, ignore_errors=True)


def _shared_memory_of(path: Path) -> list[str]:
    """Shared memory that has the name of a run's folder, or of the file in it at which vLLM's
    processes met.
    """
    names = (path.name, *(entry.name for entry in path.glob("vllm_dist_*")))
    starts = tuple(f"{name}-" for name in names)
    with suppress(OSError):
        return [
            entry.path for entry in os.scandir(sessions.SHARED) if entry.name.startswith(starts)
        ]
    return []


def environment(path: Path, cache: Path, device: str) -> dict[str, str]:
    """What sends a process's temporary files there, but for compiled code, which is worth keeping
    and would else lie where any user of the machine can put it first.

    It is kept by `device`, the hardware and what is chosen of its instructions: torch finds the
    sources of another instruction set again, and cannot compile them.
    """
    kept = cache / "inductor" / hashlib.sha256(device.encode()).hexdigest()[:12]
    inductor = os.environ.get("TORCHINDUCTOR_CACHE_DIR", str(kept))
    return {"TMPDIR": str(path), "TORCHINDUCTOR_CACHE_DIR": inductor}


def _sweep() -> None:
    # Those that would have removed their run's folder are ended here, wherever that is.
    theirs = _folders_of(sessions.orphans())
    sessions.end_orphans()
    for path in theirs | _of_runs(Path(tempfile.gettempdir())) | _of_runs(_SHORT):
        with suppress(OSError):
            status = path.lstat()
            young = path.name.startswith(_NEW) and time.time() - status.st_mtime < _OLD
            if status.st_uid == os.getuid() and not young:
                _remove_unused(path)


def _folders_of(pids: Iterable[int]) -> set[Path]:
    """The runs' folders that these processes have."""
    named = {Path(sessions.variable(pid, "TMPDIR")) for pid in pids}
    return {path for path in named if path.name.startswith(PREFIX)}


def _of_runs(parent: Path) -> set[Path]:
    return {*parent.glob(f"{PREFIX}*"), *parent.glob(f"{_NEW}*")}


def _remove_unused(path: Path) -> None:
    """Remove it unless some process holds it."""
    descriptor = os.open(path, _FOLDER)
    try:
        with suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            remove(path)
    finally:
        os.close(descriptor)
