"""The runner's end of its zygotes: start them, ask them for workers, hear of their ends."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

from conformance.environments import importable
from conformance.processes import sessions
from conformance.runner.planned import Launch

#: A zygote has one thread while it forks, and its workers share the machine with others.
_ENVIRONMENT = {"OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


@dataclass
class Zygote:
    """One warm process. `words` says why it cannot serve any more, "" while it can."""

    process: subprocess.Popen[bytes]
    socket: socket.socket
    log: Path
    begun: float = field(default_factory=time.monotonic)
    ready: bool = False
    words: str = ""
    _buffer: bytes = b""

    def ask(self, identifier: str, job: Path) -> None:
        with suppress(OSError):  # its end is heard by `hear`
            self.socket.sendall(json.dumps({"id": identifier, "job": str(job)}).encode() + b"\n")

    def hear(self) -> list[dict[str, Any]]:
        """The messages that have come; sets `ready` and `words`."""
        try:
            data = self.socket.recv(65536, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if not data:
            self.words = self.words or self._last_words()
            return []
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        messages: list[dict[str, Any]] = [json.loads(line) for line in lines]
        for message in messages:
            if message["is"] == "ready":
                self.ready = True
            elif message["is"] == "failed":
                self.words = str(message["words"])
        return [message for message in messages if "id" in message]

    @property
    def killed(self) -> bool:
        """Whether it has ended by a signal: by somebody's, or by one that its imports came to."""
        return (self.process.poll() or 0) < 0

    @property
    def crashed(self) -> bool:
        """Whether it was one that others do not send as a rule."""
        return self.killed and -self.process.returncode not in sessions.FROM_OUTSIDE

    def overdue(self, limit: float) -> bool:
        return not self.ready and not self.words and time.monotonic() - self.begun > limit

    def end(self) -> None:
        """Kill it; its workers die with it."""
        # Killed before the socket closes: it would take that for the end of the whole run.
        sessions.kill(self.process.pid)
        self.process.wait()
        self.socket.close()

    def _last_words(self) -> str:
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(timeout=5)
        with suppress(OSError):
            lines = self.log.read_text(errors="replace").split("\n")
            tail = [line for line in lines if line.strip()][-3:]
            return f"its zygote ended with status {self.process.returncode}: {' | '.join(tail)}"
        return f"its zygote ended with status {self.process.returncode}"


def start(
    launch: Launch, *, log: Path, mark: str, places: Mapping[str, str] = MappingProxyType({})
) -> Zygote:
    """Start a zygote; raises OSError when the interpreter cannot be executed. `places` are
    variables that say where it may put files.
    """
    ours, its = socket.socketpair()
    log.parent.mkdir(parents=True, exist_ok=True)
    with its, log.open("ab") as output:
        try:
            process = subprocess.Popen(
                [
                    str(launch.python),
                    "-m",
                    "conformance.worker.zygote",
                    str(its.fileno()),
                    launch.preload,
                ],
                pass_fds=(its.fileno(),),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env={**environment(launch, os.environ, mark), **places},
                # A signal to the runner's process group is the runner's to handle.
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
    return Zygote(process, ours, log)


def environment(launch: Launch, base: Mapping[str, str], mark: str) -> dict[str, str]:
    """A zygote's environment; this package is found under another interpreter too."""
    marked = {sessions.MARK: mark, **sessions.KEEPS_MARK}
    variables = {**_ENVIRONMENT, **base, **dict(launch.env), **marked}
    # Whatever the user's locale: torch and vLLM read files of their own as the locale says.
    variables["PYTHONUTF8"] = "1"
    paths = [str(importable()), *filter(None, variables.get("PYTHONPATH", "").split(os.pathsep))]
    variables["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    if launch.python != Path(sys.executable):
        variables.pop("PYTHONHOME", None)
    return variables
