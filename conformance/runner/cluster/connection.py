"""The connection to a Ray cluster (`--on`): joining, surveying and leaving it."""

from __future__ import annotations

import atexit
import logging
import os
import re
import resource
import signal
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from secrets import token_hex
from typing import Any

from conformance.errors import ConformanceError, ExitCode
from conformance.runner.cluster import machines, node
from conformance.runner.cluster.messages import Expected
from conformance.runner.cluster.remote_jobs import OnRay
from conformance.runner.planning import machine
from conformance.runner.processes import sessions, temporary
from conformance.runner.scheduling import Allocate, TimeLimits, WorkerPool
from conformance.runner.store import read_versions

#: Makes Ray use the loopback as this machine's address instead of the outward-facing one. Read when
#: Ray is imported.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

#: Seconds that our own head may be silent: nobody would restart it.
_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}

#: The longest path of Ray's sockets below its folder: a session's name, 42 characters with a
#: seven-digit process id, and `sockets/plasma_store`.
_SOCKETS = len("ray/") + 42 + len("/sockets/plasma_store")


#: `host:port`, with or without Ray's scheme; an IPv6 address is in brackets.
_PLACE = re.compile(r"(?:ray://)?(?:\[[0-9a-fA-F:.]+\]|[A-Za-z0-9][A-Za-z0-9.-]*):[0-9]{1,5}")


@dataclass(frozen=True)
class Address:
    """`place` is an address for Ray; "" for RAY_ADDRESS or, without that, a new local cluster."""

    place: str = ""

    def __str__(self) -> str:
        return self.place or "ray"


def parse_address(text: str) -> Address:
    """Parse `ray`, `ray://HOST:PORT` or `HOST:PORT`. Raises ConformanceError for other text."""
    if text == "ray":
        return Address()
    if _PLACE.fullmatch(text) is None:
        raise ConformanceError(
            f"--on {text!r} names no cluster",
            remedy="--on ray (what RAY_ADDRESS names, or a new one on this machine), "
            "--on ray://HOST:10001 (through Ray's client), --on HOST:6379 (its own network)",
        )
    return Address(text)


class Cluster:
    """A cluster that this process has joined; `ours` if it also started it."""

    def __init__(self, ray: Any, address: Address, *, ours: bool) -> None:
        self.ray = ray
        self.address = address
        self.ours = ours
        self.expected = Expected(node.code_digest(), read_versions(), machine.read_variables())
        self.machines = machines.distinguish(machines.query(ray, self.expected))

    def allocate(self, limits: TimeLimits, *, most: int | None = None) -> Allocate:
        """Run groups on the cluster, at most `most` at a time, or as many as fit."""

        def replace_workers(local: WorkerPool) -> WorkerPool:
            return OnRay(self.ray, self.machines, self.expected, local, limits=limits, most=most)

        return replace_workers


@contextmanager
def connect(address: Address) -> Iterator[Cluster]:
    """Join the cluster. On exit leave it, or end it if it was started here.

    Raises ConformanceError if Ray is not installed or no cluster answers.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # no reports to Ray's developers
    # Do not let Ray search: it reads a file in /tmp and all users' processes.
    place = address.place or os.environ.get("RAY_ADDRESS", "")
    if place:
        with _joined(address, {"address": place}) as ray:
            yield Cluster(ray, address, ours=False)
        return
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    os.environ.update({**_LOOPBACK, **_HEAD, **secret})
    # Fork before the folder is locked, so that the child does not hold the lock.
    with _nothing_left(), temporary.folder(room=_SOCKETS) as folder:
        # In a subfolder, since Ray makes its own folder accessible to everybody.
        own = {"address": "local", "include_dashboard": False, "_temp_dir": str(folder / "ray")}
        with _joined(address, {**own, **_store()}) as ray:
            yield Cluster(ray, address, ours=True)


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Make Ray's processes end with this one, however it ends; some would wait a minute for a lost
    head. A forked process does this.
    """
    mark = sessions.new_mark()
    hears, alive = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.setsid()
            os.close(alive)
            os.read(hears, 1)
            sessions.kill_marked(mark)
            with temporary.folder():  # sweeps on entry
                pass
        finally:
            os._exit(0)
    os.close(hears)
    os.environ.update({sessions.MARK: mark, **sessions.KEEPS_MARK})
    try:
        yield
    finally:
        del os.environ[sessions.MARK]
        os.close(alive)
        os.waitpid(pid, 0)


def _store() -> dict[str, int]:
    """Limit the store if the address space is limited: each of Ray's processes maps the whole
    store, by default a third of the machine's memory.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return {} if limit == resource.RLIM_INFINITY else {"object_store_memory": limit // 4}


@contextmanager
def _joined(address: Address, options: Mapping[str, Any]) -> Iterator[Any]:
    ray = _ray()
    # Ray's handler of SIGTERM exits at once (SystemExit). A run must end as on Ctrl-C and keep its
    # results.
    before = signal.getsignal(signal.SIGTERM)
    try:
        ray.init(**options, log_to_driver=False, logging_level=logging.ERROR)
    except SystemExit as error:
        raise KeyboardInterrupt from error
    except Exception as error:
        if "_temp_dir" in options:
            raise ConformanceError(f"Ray cannot be started here: {_first_line(error)}") from error
        raise ConformanceError(
            f"no Ray cluster answers at {address}: {_first_line(error)}",
            remedy="look with: ray status --address HOST:PORT; it must have this machine's "
            "versions of Ray and Python",
        ) from error
    finally:
        signal.signal(signal.SIGTERM, before)
    try:
        yield ray
    finally:
        ray.shutdown()


def _ray() -> Any:
    try:
        import ray
        import ray.util.queue  # the only part of Ray used here that `import ray` does not import
    except ImportError as error:
        raise ConformanceError(
            f"Ray cannot be used here: {error}", remedy="pip install 'conformance[ray]'"
        ) from error
    return ray


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]


#: Signals passed on to the working process, whose end is then awaited.
_ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def fork() -> int | None:
    """Continue in a forked process. Return None there, and that process's exit status here.

    If its node or head is lost, Ray exits the process that joined the cluster, with status 1 and no
    message. That would look like a failed cell, and leave everything to be cleaned up.

    Raises ConformanceError, after cleaning up, if the process did not exit regularly.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    said, says = os.pipe()
    # Use sigwait, not handlers: a Python handler runs late for a signal just before a wait, and a
    # signal before a handler is installed would end the wrong process.
    heard = {number for number in _ENDING if signal.getsignal(number) != signal.SIG_IGN}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, heard | {signal.SIGCHLD})
    pid = os.fork()
    if pid == 0:
        sessions.die_with_parent()
        # Its own process group, so that Ctrl-C reaches it once, from its parent.
        os.setpgid(0, 0)
        os.close(said)
        atexit.register(os.write, says, b".")  # not run when Ray exits the process
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return None
    os.close(says)
    os.set_blocking(said, False)  # other processes may still hold the write end
    code = _end(pid, heard)
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, before)
    with suppress(BlockingIOError):
        if os.read(said, 1):
            return code
    # Sweeps the processes and folders of killed runs.
    with temporary.folder():
        pass
    how = f"by {signal.Signals(-code).name}" if code < 0 else f"with {code}"
    raise ConformanceError(
        f"the cluster is lost: Ray ended the process that had joined it ({how})",
        remedy="go on, there or elsewhere: conformance run --resume latest",
        code=ExitCode.HARNESS,
    )


def _end(pid: int, heard: set[signal.Signals]) -> int:
    """Wait for the process and return its exit status; pass signals on to it."""
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return os.waitstatus_to_exitcode(status)
        number = signal.sigwait(heard | {signal.SIGCHLD})
        if number in heard:
            os.kill(pid, number)  # not reaped yet, so the number is still its own
