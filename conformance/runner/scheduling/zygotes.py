"""The runner's side of its zygotes, one for each launch: starts, watches and replaces them."""

from __future__ import annotations

import json
import os
import selectors
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.runner.environments import importable
from conformance.runner.processes import sessions
from conformance.runner.processes.unquoted import name_interpreter
from conformance.runner.scheduling.planned import Launch

#: A zygote must have one thread when it forks, and its workers share the machine with others.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class ZygoteProcess:
    """One warm process. `words` is why it can no longer serve, or ""."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    log: Path
    begun: float = field(default_factory=time.monotonic)
    ready: bool = False
    words: str = ""
    _buffer: bytes = b""

    def ask(self, identifier: str, job: Path) -> None:
        with suppress(OSError):  # `hear` notices its end
            self.socket.sendall(json.dumps({"id": identifier, "job": str(job)}).encode() + b"\n")

    def hear(self) -> list[dict[str, Any]]:
        """Return the new messages about workers; sets `ready` and `words`."""
        try:
            data = self.socket.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.words = self.words or self._describe_exit()
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for message in messages:
            if message["is"] == "ready":
                self.ready = True
            elif message["is"] == "failed":
                self.words = str(message["words"])
        return [message for message in messages if "id" in message]

    def overdue(self, limit: float) -> bool:
        return not self.ready and not self.words and time.monotonic() - self.begun > limit

    def end(self) -> None:
        """Kill it; its workers die with it."""
        # Kill before closing the socket, which it would take for the end of the run.
        sessions.kill(self.process.pid)
        self.process.wait()
        self.socket.close()

    def _describe_exit(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        words = f"its zygote ended with status {self.process.returncode}"
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").split("\n")
            words += f": {' | '.join([line for line in lines if line.strip()][-3:])}"
        return words


def start(
    launch: Launch, *, log: Path, mark: str, places: Mapping[str, str] = MappingProxyType({})
) -> ZygoteProcess:
    """Start a zygote. Raises OSError if the interpreter cannot be executed. `places` are
    environment variables that say where it may put files.
    """
    ours, its = socket.socketpair()
    log.parent.mkdir(parents=True, exist_ok=True)
    with its, log.open("ab") as output:
        try:
            process = subprocess.Popen(
                [
                    *(str(name_interpreter(launch.python)), "-m", "conformance.worker.zygote"),
                    *(str(its.fileno()), launch.preload),
                ],
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment(launch, os.environ, mark), **places},
                # The runner handles signals to its process group.
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    return ZygoteProcess(process, ours, log)


def environment(launch: Launch, base: Mapping[str, str], mark: str) -> dict[str, str]:
    """Return a zygote's environment, which makes this package importable in other interpreters."""
    marked = {sessions.MARK: mark, **sessions.KEEPS_MARK}
    variables = {**_ENVIRONMENT, **base, **dict(launch.env), **marked}
    # Independent of the user's locale, with which torch and vLLM would read their own files.
    variables["PYTHONUTF8"] = "1"
    paths = [str(importable()), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if launch.python != Path(sys.executable):
        variables.pop("PYTHONHOME", None)
    return variables


#: A zygote is restarted if it ended after it was ready, or by a signal: either someone killed it or
#: its imports crashed, and only the latter repeats. After this many starts it is given up.
ZYGOTE_STARTS = 3

#: The beginning of the reason if the interpreter lacks what the engine needs, or has it broken.
CANNOT_IMPORT = "the engine cannot be imported"


@dataclass(frozen=True)
class LaunchFailure:
    """Why a launch gets no more workers. `slow`: its imports took too long, as on a busy machine,
    which is not the engine's error.
    """

    words: str
    slow: bool = False


class ZygotePool:
    """The zygotes of a run; `unusable` says why a launch gets no more workers."""

    def __init__(self, logs: Path, *, mark: str, imports: float, places: Mapping[str, str]) -> None:
        self.unusable: dict[Launch, LaunchFailure] = {}
        self._logs = logs
        self._mark = mark
        self._imports = imports
        self._places = places
        self._zygotes: dict[Launch, ZygoteProcess] = {}
        self._starts: dict[Launch, int] = {}

    def start(self, launch: Launch) -> None:
        """Start a zygote for this launch, unless there is one or it is unusable."""
        if launch in self._zygotes or launch in self.unusable:
            return
        self._starts[launch] = self._starts.get(launch, 0) + 1
        number = list(self._starts).index(launch) + 1
        log = self._logs / f"zygote-{number}-{launch.preload or 'plain'}.txt"
        try:
            self._zygotes[launch] = start(launch, log=log, mark=self._mark, places=self._places)
        except OSError as error:
            self.unusable[launch] = LaunchFailure(f"{launch.python} cannot be started: {error}")

    def warm(self, launch: Launch, *, most: int) -> None:
        """Start a zygote in advance if the launch never had one and there are fewer than `most`."""
        if len(self._zygotes) < most and launch not in self._starts:
            self.start(launch)

    def ask(self, launch: Launch, identifier: str, job: Path) -> None:
        self._zygotes[launch].ask(identifier, job)

    def ready(self, launch: Launch) -> bool | None:
        """Return whether the zygote of this launch has imported everything; None without one."""
        return self._zygotes[launch].ready if launch in self._zygotes else None

    def hear(self, seconds: float) -> list[dict[str, Any]]:
        """Return the zygotes' messages about workers; wait at most `seconds`."""
        if not self._zygotes:
            return []
        with selectors.DefaultSelector() as selector:
            for zygote in self._zygotes.values():
                selector.register(zygote.socket, selectors.EVENT_READ, zygote)
            ready = [key.data for key, _ in selector.select(seconds)]
        return [message for zygote in ready for message in zygote.hear()]

    def take_lost(self, deaf: Collection[Launch]) -> dict[Launch, str]:
        """End and forget the zygotes that no longer serve; return the reason for each.

        `deaf` are those that no longer answer. Launches that cannot be retried become `unusable`.
        """
        lost: dict[Launch, str] = {}
        for launch, zygote in list(self._zygotes.items()):
            if slow := zygote.overdue(self._imports):
                zygote.words = f"the imports of {launch.preload} took more than {self._imports:g} s"
            if launch in deaf:
                zygote.words = zygote.words or "its zygote no longer answers"
            if not zygote.words:
                continue
            lost[launch] = zygote.words
            # A signal ended it: one that is usually sent from outside, or a crash in its imports.
            number = -(zygote.process.poll() or 0)
            crashed = number > 0 and number not in sessions.FROM_OUTSIDE and not zygote.ready
            zygote.end()  # which kills one that is still on its way out
            del self._zygotes[launch]
            if slow:
                self.unusable[launch] = LaunchFailure(zygote.words, slow=True)
            elif not zygote.ready and number <= 0:
                self.unusable[launch] = LaunchFailure(f"{CANNOT_IMPORT}: {zygote.words}")
            elif self._starts[launch] >= ZYGOTE_STARTS:
                why = CANNOT_IMPORT if crashed else f"{ZYGOTE_STARTS} zygotes have ended"
                self.unusable[launch] = LaunchFailure(f"{why}: {zygote.words}")
        return lost

    def keep_only(self, wanted: Collection[Launch]) -> None:
        for launch in set(self._zygotes) - set(wanted):
            self._zygotes.pop(launch).end()

    def end(self) -> None:
        self.keep_only(())
