"""To a Ray cluster and back: joined, asked what it is, and left as it was found."""

from __future__ import annotations

import logging
import os
import resource
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from secrets import token_hex
from typing import Any

from conformance.cluster import fitness, machines
from conformance.cluster.address import Address
from conformance.cluster.crew import OnRay
from conformance.cluster.machines import Machine
from conformance.cluster.messages import Expected
from conformance.errors import ConformanceError
from conformance.planning import machine
from conformance.processes import sessions, temporary
from conformance.runner import Crew, Hire, Limits
from conformance.store import installed

#: Has Ray take the loopback for this machine's address wherever it would take the one that leads
#: out. Read when Ray is imported.
_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}

#: So many seconds a head of our own may be silent: nobody would start it again.
_HEAD = {"RAY_gcs_rpc_server_reconnect_timeout_s": "10"}

#: How long the path of Ray's sockets is below its folder: a session's name, of 42 characters where
#: a process's number has seven, and `sockets/plasma_store`.
_SOCKETS = len("ray/") + 42 + len("/sockets/plasma_store")

#: Ray tells its makers of each cluster otherwise.
_QUIET = {"RAY_USAGE_STATS_ENABLED": "0"}


class Cluster:
    """A cluster that this process has joined. `ours` is one that it has started."""

    def __init__(self, ray: Any, address: Address, *, ours: bool) -> None:
        self.ray = ray
        self.address = address
        self.ours = ours
        self.expected = Expected(fitness.code_digest(), installed(), machine.chosen())
        self.machines: tuple[Machine, ...] = machines.named(machines.survey(ray, self.expected))

    def hire(self, limits: Limits, *, most: int | None = None) -> Hire:
        """Has groups run on the cluster, at most so many at a time; else all that can begin."""

        def hired(local: Crew) -> Crew:
            return OnRay(self.ray, self.machines, self.expected, local, limits=limits, most=most)

        return hired


@contextmanager
def connected(address: Address) -> Iterator[Cluster]:
    """Join the cluster; leave it, or end the one that was started here, at the end.

    Raises ConformanceError when Ray is not installed, or no cluster answers there.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    # Not what Ray finds by itself: it looks through a file in /tmp, and all users' processes.
    place = address.place or os.environ.get("RAY_ADDRESS", "")
    if place:
        with _joined(address, {"address": place}) as ray:
            yield Cluster(ray, address, ours=False)
        return
    secret = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token_hex(32)}
    os.environ.update({**_LOOPBACK, **_HEAD, **secret})
    # Begun before the folder is held, and so held by nobody when that has ended.
    with _nothing_left(), temporary.folder(room=_SOCKETS) as folder:
        # Below it: Ray has its own folder entered by everybody.
        own = {"address": "local", "include_dashboard": False, "_temp_dir": str(folder / "ray")}
        with _joined(address, {**own, **_store()}) as ray:
            yield Cluster(ray, address, ours=True)


@contextmanager
def _nothing_left() -> Iterator[None]:
    """Have what Ray starts end with this process, however that ends: some of it would wait for a
    minute for a head that is gone. A process of its own sees to it.
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
            with temporary.folder():  # which sweeps
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
    """Each process of Ray's maps the whole store, which is a third of the machine's memory, where
    nobody says otherwise.
    """
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    return {} if limit == resource.RLIM_INFINITY else {"object_store_memory": limit // 4}


@contextmanager
def _joined(address: Address, options: Mapping[str, Any]) -> Iterator[Any]:
    ray = _ray()
    # By Ray a termination ends the process at once (SystemExit); a run ends as by Ctrl-C, and keeps
    # what it has.
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
        import ray.util.queue  # of Ray's own parts the one that is not imported with it
    except ImportError as error:
        raise ConformanceError(
            f"Ray cannot be used here: {error}", remedy="pip install 'conformance[ray]'"
        ) from error
    return ray


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
