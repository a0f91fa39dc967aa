"""The runner's side of its zygotes: starts them, requests workers, and reads their messages."""

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
        """Whether a signal ended it, from outside or from a crash in its imports."""
        return (self.process.poll() or 0) < 0

    @property
    def crashed(self) -> bool:
        """Whether the signal is one that is not usually sent from outside."""
        return self.killed and -self.process.returncode not in sessions.FROM_OUTSIDE

    def overdue(self, limit: float) -> bool:
        return not self.ready and not self.words and time.monotonic() - self.begun > limit

    def end(self) -> None:
        """Kill it; its workers die with it."""
        # Kill before closing the socket, which it would take for the end of the run.
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
