"""A warm process that forks workers, so that an engine is imported only once.

    python -m conformance.worker.zygote FD [MODULE]

FD is one end of a stream socket; both sides write JSON objects, one per line:

    ← {"is": "ready", "seconds": …}   or {"is": "failed", "words": …}
    → {"id": …, "job": PATH}
    ← {"is": "started", "id": …, "pid": …}
    ← {"is": "exited", "id": …, "status": …, "left": […]}

`status` is the result of `os.waitstatus_to_exitcode`. When the socket closes, however the runner
ended, the zygote kills every worker's session and ends.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import signal
import socket
import sys
import time
import traceback
import weakref
from contextlib import suppress
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, NoReturn

import psutil

from conformance.runner.processes import sessions, temporary

#: Seconds in which the runner must have ended once its socket is closed.
_PARENT_GONE_WITHIN = 30.0


class ZygoteLoop:
    """The loop that handles the runner's requests and the ends of children."""

    def __init__(self, runner: socket.socket, parent: int) -> None:
        self._runner = runner
        self._parent = parent
        self._workers: dict[int, str] = {}
        self._buffer = b""
        #: Processes that the imports started, such as Python's resource tracker.
        self._own = sessions.descendants(os.getpid())
        self._wakeup, self._wake = socket.socketpair()
        for end in (self._wakeup, self._wake):
            end.setblocking(False)

    def serve(self) -> None:
        """Serve requests until the runner closes its end."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        while True:
            ready = wait([self._runner, self._wakeup])
            if self._wakeup in ready:
                with suppress(BlockingIOError):
                    self._wakeup.recv(4096)
                self._reap()
            if self._runner in ready and not self._obey():
                return

    def end(self) -> None:
        """Kill all workers and other descendants; remove the run's folder if the runner ended."""
        for pid in self._workers:
            sessions.kill(pid)
        sessions.kill_descendants(os.getpid())
        # The kernel closes a process's sockets before it gives its children another parent.
        deadline = time.monotonic() + _PARENT_GONE_WITHIN
        while os.getppid() == self._parent:
            if time.monotonic() >= deadline:
                return
            time.sleep(0.01)
        # Leave the runner's other zygotes alone: each has to end its own workers.
        temporary.remove(Path(os.environ.get("TMPDIR", "")))

    def _obey(self) -> bool:
        """Start the workers that the runner requests; return whether it is still there."""
        data = b""
        with suppress(ConnectionError):
            data = self._runner.recv(65536)
        if not data:
            return False
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        for line in lines:
            request = json.loads(line)
            self._start(request["id"], Path(request["job"]))
        return True

    def _start(self, identifier: str, job: Path) -> None:
        pid = os.fork()
        if pid == 0:
            self._become_worker(job)
        self._workers[pid] = identifier
        self._say({"is": "started", "id": identifier, "pid": pid})

    def _become_worker(self, job: Path) -> NoReturn:
        code = 1
        try:
            os.setsid()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            for end in (self._runner, self._wakeup, self._wake):
                end.close()
            # Finalizers registered by the imports are the zygote's. For vLLM's operators alone,
            # which torch would remove one by one, they would take most of a second.
            for left in list(weakref.finalize._registry):  # type: ignore[attr-defined] # noqa: SLF001
                left.atexit = False
            from conformance.worker import main

            code = main.main(job)
            atexit._run_exitfuncs()  # noqa: SLF001 - as multiprocessing does in its children
        except SystemExit as ended:
            code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        except BaseException:  # noqa: BLE001 - nothing may return into the zygote's loop
            traceback.print_exc()
        finally:
            with suppress(Exception):
                sys.stdout.flush()
                sys.stderr.flush()
            # Do not unwind the zygote's own frames, which are still on this stack.
            os._exit(code)

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            identifier = self._workers.pop(pid, None)
            if identifier is None:
                continue
            survivors = sessions.kill(pid)
            # Other children than workers left the session of the worker that ended.
            for child in psutil.Process().children():
                if child.pid not in self._workers and child.pid not in self._own:
                    survivors |= sessions.kill(child.pid)
            code = os.waitstatus_to_exitcode(status)
            self._say({"is": "exited", "id": identifier, "status": code, "left": sorted(survivors)})

    def _say(self, message: dict[str, Any]) -> None:
        with suppress(ConnectionError):  # the loop will notice
            say(self._runner, message)


def say(runner: socket.socket, message: dict[str, Any]) -> None:
    runner.sendall(json.dumps(message).encode() + b"\n")


def main(descriptor: int, preload: str = "") -> None:
    parent = os.getppid()
    # Imports take seconds, during which the socket is not read.
    sessions.die_with_parent()
    sessions.adopt_orphans()
    temporary.hold()
    # The runner decides: `timeout` or a closed terminal signals its whole process group.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    runner = socket.socket(fileno=descriptor)
    begun = time.monotonic()
    try:
        importlib.import_module("conformance.worker.main")
        if preload:
            importlib.import_module(preload)
    except Exception as error:  # noqa: BLE001 - an engine's import can raise anything
        traceback.print_exc()
        say(runner, {"is": "failed", "words": f"{type(error).__name__}: {error}"})
        return
    # Pages that the collector does not touch stay shared with every worker.
    gc.collect()
    gc.freeze()
    if (threads := psutil.Process().num_threads()) > 1:
        # A fork copies only the forking thread: a lock held by another thread stays locked.
        sys.stderr.write(f"{preload} has left {threads} threads: a worker may hang\n")
    sessions.die_with_parent(enabled=False)
    zygote = ZygoteLoop(runner, parent)
    say(runner, {"is": "ready", "seconds": time.monotonic() - begun})
    try:
        zygote.serve()
    finally:
        zygote.end()


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:3])
