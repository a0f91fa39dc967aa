"""One worker as the runner sees it: its events, and its time limits."""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from types import UnionType
from typing import Any

from conformance.runner.processes import sessions
from conformance.runner.scheduling.time_limits import TimeLimits
from conformance.runner.store import GroupFolder
from conformance.spec import loose_json
from conformance.spec.records import Status

#: Seconds that all hanging processes together have to write their stacks to the log.
_STACKS_WITHIN = 2.0

#: Seconds without another line after which the stacks are complete.
_STACKS_SETTLE = 0.1


#: The fields of each event.
_SAYS: Mapping[str, Mapping[str, type | UnionType]] = {
    "loading": {},
    "loaded": {"seconds": int | float, "shared": list},
    "started": {"case": str},
    # Each run of a case that is run several times, and each of its traces, has the full limit.
    "again": {"case": str},
    "finished": {"case": str, "status": str, "seconds": int | float},
    "died": {"words": str, "outside": bool},
    "idle": {},
    "closing": {},
    "closed": {},
}


def _is_event(event: object) -> bool:
    """Return whether this parsed line of the events file is a worker's event."""
    if not isinstance(event, dict) or event.get("event") not in list(_SAYS):
        return False
    says = {"at": int | float, **_SAYS[event["event"]]}
    valid = all(isinstance(event.get(name), kind) for name, kind in says.items())
    return valid and event.get("status", "ok") in list(Status)


@dataclass
class Attempt:
    """One worker. `case` is the running cell, or ""; `since` is when the current phase began.

    `shared` are the engine's shared memory files after loading. `killed` is when the worker was
    killed for the reason in `overdue`.
    """

    folder: GroupFolder
    number: int
    pid: int = 0
    phase: str = "waiting"
    case: str = ""
    since: float = field(default_factory=time.monotonic)
    loaded: bool = False
    finished: list[str] = field(default_factory=list)
    words: str = ""
    outside: bool = False
    shared: tuple[str, ...] = ()
    overdue: str = ""
    killed: float = math.inf
    log_start: int = 0
    _read: int = 0
    _buffer: bytes = b""

    @classmethod
    def begin(cls, folder: GroupFolder, number: int) -> Attempt:
        """Start to read the group's files at their current ends."""
        events = folder.events.stat().st_size if folder.events.exists() else 0
        return cls(folder, number, log_start=folder.log_size(), _read=events)

    def enter(self, phase: str) -> None:
        """Record that the runner has begun a phase: requested cases, or the start of a process."""
        self.phase, self.since = phase, time.monotonic()

    def hear(self) -> list[dict[str, Any]]:
        """Read, apply and return the worker's new events."""
        try:
            with self.folder.events.open("rb") as file:
                file.seek(self._read)
                data = file.read()
        except FileNotFoundError:
            return []
        self._read += len(data)
        *lines, self._buffer = (self._buffer + data).split(b"\n")
        events = []
        for line in lines:
            # Output of a trace to the worker's file descriptors may come between events.
            with suppress(ValueError):
                event = loose_json.parsed(line)
                if _is_event(event):
                    self._take(event)
                    events.append(event)
        return events

    def _take(self, event: dict[str, Any]) -> None:
        self.since = event["at"]
        match event["event"]:
            case "loaded":
                self.loaded, self.phase = True, "between"
                self.shared = tuple(map(str, event["shared"]))
            case "started":
                self.case, self.phase = event["case"], "cell"
            case "finished":
                self.finished.append(event["case"])
                self.case, self.phase = "", "between"
            case "died":
                self.words, self.outside = event["words"], event["outside"]
            case "idle":
                self.phase = "idle"
            case "closing" | "closed":
                self.phase = "close"

    def kill_when_overdue(self, limits: TimeLimits, now: float) -> None:
        limit, words = limits.of(self.phase)
        if self.overdue or now - self.since <= limit:
            return
        self.overdue = words
        if self.pid:
            if stopped := sessions.find_stopped(self.pid):
                self.overdue += f"; process {stopped[0]} was stopped by a signal"
            self._ask_for_stacks()
            sessions.kill(self.pid)
        self.killed = time.monotonic()

    def _ask_for_stacks(self) -> None:
        """Make the worker, and stages forked from it, write their stacks to the log.

        One process at a time, since each writes in many small pieces: wait until the log has grown
        and stopped growing.
        """
        until = time.monotonic() + _STACKS_WITHIN
        for pid in sessions.that_handle(signal.SIGUSR1, self.pid):
            before = size = self.folder.log_size()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
            changed = time.monotonic()
            while (now := time.monotonic()) < until:
                last, size = size, self.folder.log_size()
                if size != last:
                    changed = now
                elif size > before and now - changed > _STACKS_SETTLE:
                    break
                time.sleep(0.01)
