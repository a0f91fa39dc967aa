"""One worker's life as the runner sees it: its events, and the limit it is under."""

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

from conformance import loose_json
from conformance.processes import sessions
from conformance.records import Status
from conformance.runner.timeouts import Limits
from conformance.store import GroupFolder

#: How long those that hang may take to write their stacks to the log, all together.
_STACKS_WITHIN = 2.0

#: After so long without another line, all of them are written.
_STACKS_SETTLE = 0.1


#: What an event says besides its name.
_SAYS: Mapping[str, Mapping[str, type | UnionType]] = {
    "loading": {},
    "loaded": {"seconds": int | float, "shared": list},
    "started": {"case": str},
    # Each run of a case that is run several times, and each of its traces, has the whole limit.
    "again": {"case": str},
    "finished": {"case": str, "status": str, "seconds": int | float},
    "died": {"words": str, "outside": bool},
    "idle": {},
    "closing": {},
    "closed": {},
}


def _is_event(event: object) -> bool:
    """Whether a line of the events' file is one that a worker writes."""
    if not isinstance(event, dict) or not isinstance(event.get("event"), str):
        return False
    says = _SAYS.get(event["event"])
    if says is None or not isinstance(event.get("at"), int | float):
        return False
    if not all(isinstance(event.get(name), kind) for name, kind in says.items()):
        return False
    return event.get("status", "ok") in list(Status)


@dataclass
class Attempt:
    """`case` is the cell being run, "" otherwise; `since` when the present phase began.

    `shared` names what the engine had in shared memory once it was loaded, `killed` is
    when it was killed for being `overdue`.
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
        """Look at the group's files from their present ends on."""
        with suppress(FileNotFoundError):
            return cls(
                folder, number, log_start=folder.log_size(), _read=folder.events.stat().st_size
            )
        return cls(folder, number, log_start=folder.log_size())

    def resume(self) -> None:
        """Take note that the worker, which was idle, was given something to do."""
        self.phase, self.since = "between", time.monotonic()

    def started(self, pid: int) -> None:
        self.pid, self.phase, self.since = pid, "load", time.monotonic()

    def hear(self) -> list[dict[str, Any]]:
        """The worker's new events, taken into account."""
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
            # What a trace writes to a descriptor of its worker's may stand between.
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

    def kill_when_overdue(self, limits: Limits, now: float) -> None:
        limit, words = limits.of(self.phase)
        if self.overdue or now - self.since <= limit:
            return
        self.overdue = words
        if self.pid:
            if stopped := sessions.stopped(self.pid):
                self.overdue += f"; process {stopped[0]} was stopped by a signal"
            self._ask_for_stacks()
            sessions.kill(self.pid)
        self.killed = time.monotonic()

    def _ask_for_stacks(self) -> None:
        """Have the worker, and stages forked from it, write where they hang to the log.

        One after the other, because each writes in many small pieces.
        """
        until = time.monotonic() + _STACKS_WITHIN
        for pid in sessions.that_handle(signal.SIGUSR1, self.pid):
            before = self.folder.log_size()
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGUSR1)
            self._wait_for_log(before, until)

    def _wait_for_log(self, before: int, until: float) -> None:
        """Until the log has grown and grows no more."""
        size, changed = before, time.monotonic()
        while (now := time.monotonic()) < until:
            last, size = size, self.folder.log_size()
            if size != last:
                changed = now
            elif size > before and now - changed > _STACKS_SETTLE:
                return
            time.sleep(0.01)
