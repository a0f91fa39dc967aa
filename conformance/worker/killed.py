"""Which processes of an engine were ended by a signal that none of them sent.

An engine whose process is killed while it loads (one kill for want of memory is enough) raises
as one does that cannot start. The two are told apart by what this process, and those forked from
it, send and reap. The kernel reports an end once, to whoever reaps: vLLM's own monitors do.
"""

from __future__ import annotations

import fcntl
import os
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

#: Signals with which somebody ends a process; the others a process brings on itself.
_OUTSIDE = frozenset({signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})


@dataclass(frozen=True)
class Ended:
    """In words which processes a signal has ended; `outside`: one with which somebody else ends
    them, and not one that a process brings on itself.
    """

    words: str
    outside: bool


class Ends:
    """A note, shared with all forked processes, of signals that were sent and of ends."""

    def __init__(self) -> None:
        self._note = os.memfd_create("ends")
        fcntl.fcntl(self._note, fcntl.F_SETFL, os.O_APPEND)

    def watch(self) -> None:
        """From now on everything that is sent and reaped through `os` is noted."""
        wait, kill, killpg = os.waitpid, os.kill, os.killpg

        def waitpid(pid: int, options: int, /) -> tuple[int, int]:
            reaped, status = wait(pid, options)
            if reaped and os.WIFSIGNALED(status):
                self._write("ended", reaped, os.WTERMSIG(status))
            return reaped, status

        os.waitpid = waitpid
        os.kill = self._sending(kill, "sent")
        os.killpg = self._sending(killpg, "sent-group")

    def _sending(self, send: Callable[..., None], kind: str) -> Any:
        def noted(pid: int, number: int, /) -> None:
            self._write(kind, pid, number)
            send(pid, number)

        return noted

    def _write(self, kind: str, pid: int, number: int) -> None:
        with suppress(OSError):  # the note was closed with all other descriptors
            os.write(self._note, f"{kind} {pid} {int(number)}\n".encode())

    def by_signals(self) -> Ended | None:
        """Who was ended by a signal that none of them sent, None for nobody."""
        text = os.pread(self._note, os.fstat(self._note).st_size, 0).decode()
        lines = (line.split() for line in text.splitlines())
        noted = [(kind, int(pid), int(number)) for kind, pid, number in lines]
        if any(kind == "sent-group" and number for kind, _, number in noted):
            return None  # whom it hit is not known
        sent = {(pid, number) for kind, pid, number in noted if kind == "sent"}
        ended = [(pid, number) for kind, pid, number in noted if kind == "ended"] + _unreaped()
        ended = [end for end in dict.fromkeys(ended) if end not in sent]
        outside = [end for end in ended if end[1] in _OUTSIDE]
        how = "ended from outside" if outside else "ended"
        words = [
            f"process {pid} was {how} by {signal.Signals(number).name}"
            for pid, number in outside or ended
        ]
        return Ended(", ".join(words), outside=bool(outside)) if words else None


def _unreaped() -> list[tuple[int, int]]:
    """Descendants that a signal has ended and nobody has waited for: an engine's own processes may
    be another one's children, as nnsight-serve's core is its server's.
    """
    ended = []
    for child in psutil.Process().children(recursive=True):
        with suppress(OSError, ValueError, psutil.Error):
            if child.status() != psutil.STATUS_ZOMBIE:
                continue
            status = _wait_status(child)
            if os.WIFSIGNALED(status):
                ended.append((child.pid, os.WTERMSIG(status)))
    return ended


def _wait_status(ended: psutil.Process) -> int:
    """What waiting for an ended process would give: the last field of its line in /proc."""
    line = Path(f"/proc/{ended.pid}/stat").read_text(encoding="utf-8", errors="replace")
    return int(line.rpartition(")")[2].split()[-1])
