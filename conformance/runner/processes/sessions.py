"""The processes of a run: finding them, ending all of them, and measuring their memory.

A worker leads a process session, so that everything an engine starts can be found and ended with
it. A process that leaves the session is found as a descendant, or by the run's mark in its
environment. The mark names the process that began the run; once that has ended, processes with the
mark are orphans.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

#: Every process of a run has the run's value of this environment variable.
MARK = "CONFORMANCE_RUN_MARK"

#: Preserves the mark: vLLM's processes set long titles, and setproctitle would write them over the
#: environment that the system shows.
KEEPS_MARK = {"SPT_NOENV": "1"}

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: The exit status of a worker when it, and not the engine, failed.
HARNESS_FAILED = 73

#: Signals with which others end a process; a process causes other signals itself.
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

#: Seconds in which killed processes must disappear. SIGKILL waits only for system calls that cannot
#: be interrupted.
_GONE_WITHIN = 5.0

#: The number of consecutive checks that must find no process.
_EMPTY_LOOKS = 2

SHARED = "/dev/shm/"  # noqa: S108 - where the system puts shared memory


def die_with_parent(*, enabled: bool = True) -> None:
    """Make the kernel kill this process when its parent ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if enabled else 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose parent ended, so that none is lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    # Linux only; elsewhere the session and the closed socket must suffice.
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)


def is_alive(pid: int) -> bool:
    """Return whether the process exists and is not a zombie."""
    return _status(pid) not in ("", psutil.STATUS_ZOMBIE)


def _status(pid: int) -> str:
    with suppress(psutil.NoSuchProcess):
        return str(psutil.Process(pid).status())
    return ""


def descendants(pid: int) -> set[int]:
    """Return all descendants of a process, except zombies."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {process.pid for process in children if is_alive(process.pid)}


def members(leader: int) -> set[int]:
    """Return every living process of the session led by `leader`, and its descendants."""
    same: set[int] = set()
    for pid in psutil.pids():
        with suppress(ProcessLookupError, PermissionError):
            if os.getsid(pid) == leader and is_alive(pid):
                same.add(pid)
    return same | descendants(leader)


def between(leader: int, pids: Iterable[int]) -> set[int]:
    """Return the leader, those of `pids` that descend from it, and all processes between."""
    found = {leader}
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            line = [pid, *(parent.pid for parent in process.parents())]
            if leader in line:
                found.update(line[: line.index(leader)])
    return found


def new_mark() -> str:
    """Return a mark for a run that this process begins."""
    return f"{os.getpid()}-{_began(os.getpid())}-{uuid.uuid4().hex}"


def find_marked(mark: str) -> set[int]:
    """Return every other living process with this mark."""
    return {pid for pid, theirs in _marks() if theirs == mark}


def of_runs() -> set[int]:
    """Return every living process of any run of this user."""
    return {pid for pid, _ in _marks()}


def orphans() -> set[int]:
    """Return every living process of a run whose first process has ended, as after a kill of all
    processes that would have ended the rest (`pkill -9 conformance`).
    """
    here = _numbers_of(os.getpid())
    begun = [(pid, run) for pid, mark in _marks() if (run := _BEGUN.match(mark))]
    return {
        pid
        for pid, run in begun
        # A container's processes may be visible from outside it, with other process ids.
        if here is not None and here == _numbers_of(pid) and _began(int(run["pid"])) != run["at"]
    }


def variable(pid: int, name: str) -> str:
    """Return a process's environment variable from its start, or ""."""
    with suppress(psutil.Error, OSError):
        return str(psutil.Process(pid).environ().get(name, ""))
    return ""


def end_orphans() -> set[int]:
    """End all orphans; return those that are still alive afterwards."""
    return _kill_and_unlink(orphans)


#: The beginning of a mark from `new_mark`.
_BEGUN = re.compile(r"(?P<pid>\d+)-(?P<at>\d+)-")


def _marks() -> Iterator[tuple[int, str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK)
            if mark is not None and process.pid != os.getpid() and is_alive(process.pid):
                yield process.pid, mark


def _began(pid: int) -> str:
    """Return a process's start time in clock ticks since boot, independent of the time of day; ""
    if it has ended.
    """
    with suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # Fields 3 and 22 of proc(5).
        return "" if words[0] in "ZX" else words[19]
    return ""


def _numbers_of(pid: int) -> str | None:
    """Return the process's PID namespace, or None if it may not be read."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return None


def kill(leader: int) -> set[int]:
    """End a whole session and release its shared memory.

    Return the processes that are still alive afterwards, usually none.
    """
    before = {pid: _began(pid) for pid in members(leader) | {leader}}
    shared = shared_files(before)
    # All at once, in the kernel, so that no member can start another meanwhile. Do not stop them
    # first: if this process is ended in between, they would stay stopped.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)

    def remaining_members() -> set[int]:
        # Members in other sessions have lost the parents by which they were found.
        seen = {pid for pid, began in before.items() if began and _began(pid) == began}
        return seen | members(leader)

    remaining = _kill_until_none(remaining_members)
    unlink_shared(shared)
    return remaining


def find_stopped(leader: int) -> list[int]:
    """Return the members of a session that a signal has stopped."""
    return [pid for pid in sorted(members(leader)) if _status(pid) == psutil.STATUS_STOPPED]


def that_handle(number: signal.Signals, leader: int) -> list[int]:
    """Return the members of a session that handle this signal, the leader first."""
    pids = []
    for pid in sorted(members(leader), key=lambda pid: (pid != leader, pid)):
        with suppress(OSError):
            caught = re.search(r"SigCgt:\s*(\w+)", Path(f"/proc/{pid}/status").read_text())
            if caught and int(caught[1], 16) >> (number - 1) & 1:
                pids.append(pid)
    return pids


def kill_descendants(pid: int) -> set[int]:
    """End all descendants of a process; return those that are still alive afterwards."""
    return _kill_and_unlink(lambda: descendants(pid))


def kill_marked(mark: str) -> set[int]:
    """End every other process of a run; return those that are still alive afterwards."""
    return _kill_until_none(lambda: find_marked(mark))


def _kill_and_unlink(look: Callable[[], set[int]]) -> set[int]:
    shared = shared_files(look())
    remaining = _kill_until_none(look)
    unlink_shared(shared)
    return remaining


def _kill_until_none(look: Callable[[], set[int]]) -> set[int]:
    """Send SIGKILL until no process is found: one that is killed may have started another."""
    begun = time.monotonic()
    pause = 0.001
    empty = 0
    while empty < _EMPTY_LOOKS:
        remaining = look()
        empty = 0 if remaining else empty + 1
        passed = time.monotonic() - begun
        if remaining and passed > _GONE_WITHIN:
            return remaining
        for pid in remaining:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(pause)
        pause = min(2 * pause, 0.05)
    return set()


def shared_files(pids: Iterable[int]) -> set[str]:
    """Return the shared memory files that these processes have open.

    vLLM's CPU kernels never unlink theirs, and no resource tracker knows them.
    """
    paths: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            # Not through psutil, which also measures every mapping: too slow for an engine.
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                _, slash, name = line.partition(SHARED)
                paths.add(slash + name)
    return {path for path in paths if path and Path(path).is_file()}


def unlink_shared(paths: Iterable[str]) -> None:
    """Unlink shared memory whose processes have ended."""
    for path in paths:
        if path.startswith(SHARED) and "/.." not in path:
            with suppress(OSError, ValueError):
                Path(path).unlink(missing_ok=True)


def listening(pids: Iterable[int]) -> set[str]:
    """Return these processes' listening addresses, "ADDRESS:PORT", and the names of their local
    sockets; abstract ones start with @.
    """
    addresses: set[str] = set()
    for pid in pids:
        with suppress(psutil.Error, OSError):
            for connection in psutil.Process(pid).net_connections("all"):
                if connection.family is socket.AF_UNIX:
                    addresses.add(str(connection.laddr))
                elif connection.status == psutil.CONN_LISTEN:
                    addresses.add(f"{connection.laddr[0]}:{connection.laddr[1]}")
    return addresses - {""}


def reached_from_outside(place: str) -> bool:
    """Return whether other machines can connect to an address from `listening`."""
    return ":" in place and not place.startswith(("/", "@", "127.", "::1:", "::ffff:127."))


def seconds_running() -> float:
    """Return the seconds since this process started, its imports included."""
    return time.time() - psutil.Process().create_time()


def memory_mib(pids: Iterable[int]) -> float:
    """Return the proportional set size in MiB: pages shared by forked processes count once."""
    total = 0
    for pid in pids:
        with suppress(psutil.Error, OSError):
            total += psutil.Process(pid).memory_full_info().pss
    return total / 2**20
