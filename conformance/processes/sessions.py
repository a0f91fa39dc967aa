"""The processes of a run: who they are, how all of them are ended, what they weigh.

A worker leads a process session, so that everything an engine starts can be found and
ended with it. What leaves the session on purpose is found as a descendant, or by the
run's mark in its environment, which says who began the run: what carries the mark of a run
that has ended belongs to nobody.
"""

from __future__ import annotations

import ctypes
import os
import re
import signal
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil

#: Every process of a run carries the run's own value of this variable.
MARK = "CONFORMANCE_RUN_MARK"

#: What keeps it there: vLLM's processes give themselves titles, and setproctitle writes a long one
#: over the environment that the system shows, unless this is set.
KEEPS_MARK = {"SPT_NOENV": "1"}

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: What a worker ends with when it, and not the engine, has failed.
HARNESS_FAILED = 73

#: Signals by which somebody else ends a process; others a process brings on itself.
FROM_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})

#: How long killed processes may take to disappear. SIGKILL waits only for a system call
#: that cannot be interrupted.
_GONE_WITHIN = 5.0

#: So many looks in a row must find nobody.
_EMPTY_LOOKS = 2

SHARED = "/dev/shm/"  # noqa: S108 - where the system puts shared memory


def die_with_parent(*, enabled: bool = True) -> None:
    """Have the kernel kill this process when the one that started it ends."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if enabled else 0)


def adopt_orphans() -> None:
    """Become the parent of descendants whose own parent ended, so that none is lost."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    # Linux only; elsewhere the session and the closed socket have to do.
    prctl = getattr(ctypes.CDLL(None, use_errno=True), "prctl", None)
    if prctl is not None:
        prctl(option, value, 0, 0, 0)


def alive(pid: int) -> bool:
    """Whether the process exists and has not ended; a zombie has."""
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def descendants(pid: int) -> set[int]:
    """Children, their children and so on, zombies left out."""
    try:
        children = psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return set()
    return {process.pid for process in children if alive(process.pid)}


def members(leader: int) -> set[int]:
    """Every living process of the session led by `leader`, and the leader's descendants."""
    return {pid for pid in psutil.pids() if _session(pid) == leader and alive(pid)} | descendants(
        leader
    )


def between(leader: int, pids: Iterable[int]) -> set[int]:
    """These of the leader's descendants, what started them up to the leader, and the leader."""
    found = {leader}
    for pid in pids:
        with suppress(psutil.Error):
            process = psutil.Process(pid)
            line = [pid, *(parent.pid for parent in process.parents())]
            if leader in line:
                found.update(line[: line.index(leader)])
    return found


def _session(pid: int) -> int:
    try:
        return os.getsid(pid)
    except (ProcessLookupError, PermissionError):
        return -1


def new_mark() -> str:
    """A mark for a run that this process begins."""
    return f"{os.getpid()}-{_began(os.getpid())}-{uuid.uuid4().hex}"


def marked(mark: str) -> set[int]:
    """Every living process that carries this mark, but for the one that asks."""
    return {pid for pid, theirs in _marks() if theirs == mark}


def of_runs() -> set[int]:
    """Every living process of any run of this user's."""
    return {pid for pid, _ in _marks()}


def orphans() -> set[int]:
    """Every living process of a run whose first process has ended without it: killed together
    with those that would have ended the rest, as by `pkill -9 conformance`.
    """
    return {pid for pid, mark in _marks() if _is_orphan(pid, mark)}


def variable(pid: int, name: str) -> str:
    """A process's environment variable, as it was when the process began; "" for none."""
    with suppress(psutil.Error, OSError):
        return str(psutil.Process(pid).environ().get(name, ""))
    return ""


def _is_orphan(pid: int, mark: str) -> bool:
    if (run := _BEGUN.match(mark)) is None:
        return False
    here, there = _numbers_of(os.getpid()), _numbers_of(pid)
    # A container's processes may be seen from outside of it, and have other numbers there.
    return here is not None and here == there and _began(int(run["pid"])) != run["at"]


def end_orphans() -> set[int]:
    """End them; returns who is still there afterwards."""
    return _kill_and_unlink(orphans)


#: How `new_mark` begins.
_BEGUN = re.compile(r"(?P<pid>\d+)-(?P<at>\d+)-")


def _marks() -> Iterator[tuple[int, str]]:
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            mark = process.environ().get(MARK)
            if mark is not None and process.pid != os.getpid() and alive(process.pid):
                yield process.pid, mark


def _began(pid: int) -> str:
    """When a process began, in clock ticks since the machine did, whatever the time of day; ""
    for one that has ended.
    """
    with suppress(OSError, IndexError):
        words = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        # The 3rd and the 22nd of proc(5).
        return "" if words[0] in "ZX" else words[19]
    return ""


def _numbers_of(pid: int) -> str | None:
    """The space that a process's number is of, None where it may not be looked at."""
    with suppress(OSError):
        return str(Path(f"/proc/{pid}/ns/pid").readlink())
    return None


def kill(leader: int) -> set[int]:
    """End a whole session and give its shared memory back.

    Returns who is still there afterwards: nobody, as a rule.
    """
    before = {pid: _began(pid) for pid in members(leader) | {leader}}
    shared = shared_files(before)
    # At once, in the kernel: whoever is in the group cannot start another one meanwhile. Never
    # stopped first, as whoever stops them may be ended before they are, and leaves them so.
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)

    def remaining_members() -> set[int]:
        # Those in other sessions have lost the parents by which they were found.
        seen = {pid for pid, began in before.items() if began and _began(pid) == began}
        return seen | members(leader)

    remaining = _kill_until_none(remaining_members)
    unlink_shared(shared)
    return remaining


def stopped(leader: int) -> list[int]:
    """Return the members of a session that a signal has stopped."""
    pids = []
    for pid in sorted(members(leader)):
        with suppress(psutil.Error):
            if psutil.Process(pid).status() == psutil.STATUS_STOPPED:
                pids.append(pid)
    return pids


def that_handle(number: signal.Signals, leader: int) -> list[int]:
    """The members of a session whom this signal does not simply end, the leader first."""
    pids = []
    for pid in sorted(members(leader), key=lambda pid: (pid != leader, pid)):
        with suppress(OSError):
            if _handles(pid, number):
                pids.append(pid)
    return pids


def _handles(pid: int, number: signal.Signals) -> bool:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "SigCgt":
            return bool(int(value, 16) >> (number - 1) & 1)
    return False


def kill_descendants(pid: int) -> set[int]:
    """End a process's children, theirs and so on; returns who is still there afterwards."""
    return _kill_and_unlink(lambda: descendants(pid))


def kill_marked(mark: str) -> set[int]:
    """End every other process of a run; returns who is still there afterwards."""
    return _kill_until_none(lambda: marked(mark))


def _kill_and_unlink(look: Callable[[], set[int]]) -> set[int]:
    shared = shared_files(look())
    remaining = _kill_until_none(look)
    unlink_shared(shared)
    return remaining


def _kill_until_none(look: Callable[[], set[int]]) -> set[int]:
    """SIGKILL until a look finds nobody: one who is killed may just have started another."""
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
    """The names in shared memory that these processes have open.

    vLLM's CPU kernels never unlink theirs, and no resource tracker knows of them.
    """
    paths: set[str] = set()
    for pid in pids:
        with suppress(OSError):
            # Not through psutil, which measures every mapping as well: too slow for an engine.
            for line in Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines():
                _, slash, name = line.partition(SHARED)
                paths.add(slash + name)
    return {path for path in paths if path and Path(path).is_file()}


def unlink_shared(paths: Iterable[str]) -> None:
    """Give back shared memory whose processes have ended."""
    for path in paths:
        if path.startswith(SHARED) and "/.." not in path:
            with suppress(OSError, ValueError):
                Path(path).unlink(missing_ok=True)


def listening(pids: Iterable[int]) -> set[str]:
    """Where these processes take connections: "ADDRESS:PORT", or the name of a local socket."""
    addresses: set[str] = set()
    for pid in pids:
        with suppress(psutil.Error, OSError):
            for connection in psutil.Process(pid).net_connections("inet"):
                if connection.status == psutil.CONN_LISTEN:
                    addresses.add(f"{connection.laddr[0]}:{connection.laddr[1]}")
            addresses |= _local_sockets(pid)
    return addresses


#: In /proc/net/unix: the socket takes connections.
_ACCEPTS = 0x10000


def _local_sockets(pid: int) -> set[str]:
    """The names of a process's listening sockets in the file system, or after an @ outside it."""
    own = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(OSError):
            own.add(descriptor.readlink().name)
    names = set()
    for line in Path(f"/proc/{pid}/net/unix").read_text().splitlines()[1:]:
        _, _, _, flags, _, _, inode, *name = line.split(maxsplit=7)
        if int(flags, 16) & _ACCEPTS and f"socket:[{inode}]" in own:
            names.add(name[0] if name else "")
    return names


def reached_from_outside(place: str) -> bool:
    """Whether other machines can connect to a place that `listening` names."""
    return ":" in place and not place.startswith(("/", "@", "127.", "::1:", "::ffff:127."))


def memory_mib(pids: Iterable[int]) -> float:
    """Proportional set size in MiB: pages shared by forked processes are counted once."""
    total = 0
    for pid in pids:
        try:
            total += psutil.Process(pid).memory_full_info().pss
        except (psutil.Error, OSError):
            continue
    return total / 2**20
