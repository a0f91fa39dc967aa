"""Why a worker ended and where it hung, and which cells are retried (pure functions)."""

from __future__ import annotations

import re
import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from conformance.runner.processes import sessions
from conformance.spec.records import Case, Frame, Owner, Status

if TYPE_CHECKING:
    from conformance.runner.scheduling.attempt import Attempt

#: A cell is recorded as failed after this many workers died in it.
DEATHS_OF_A_CELL = 2

#: A group is given up after this many workers in a row finished no cell.
DEATHS_IN_A_ROW = 6


#: The header of a thread's stack from `faulthandler`, innermost call first.
_THREAD = re.compile(r"^(?:Current thread|Thread) 0x.*\(most recent call first\):$", re.MULTILINE)
_CALL = re.compile(r'^  File "([^"]+)", line (\d+) in ', re.MULTILINE)
#: A block that waits in Python's own library is itself the one waiting.
_LIBRARY = re.compile(r"/lib/python3\.\d+/(?!site-packages/)|^<frozen ")
#: nnsight's file names for the code of a block.
_BLOCK = re.compile(r"<(?:edit|nnsight)[^>]*>")


@dataclass(frozen=True)
class Death:
    """A worker that ended early.

    `case` is the cell that it was running, "" while loading or between cells. `final` says that
    another worker would end in the same way, `harness` that the engine is not the culprit, and
    `outside` that someone killed it.
    """

    status: Status
    reason: str
    case: str = ""
    final: bool = False
    harness: bool = False
    outside: bool = False


def explain(status: int, attempt: Attempt) -> Death:
    """Explain a worker's end from its exit status (negative: the signal that ended it)."""
    overdue, words, loaded = attempt.overdue, attempt.words, attempt.loaded
    while_ = "between cells" if loaded else "while loading"
    if attempt.case:
        while_ = f"while running {attempt.case}"
    ended = f"the worker ended with exit status {status} {while_}"
    match status:
        case _ if overdue:
            kind, reason = Status.TIMEOUT, f"{overdue}; all its processes were killed"
        case _ if words:
            kind, reason = Status.CRASH, f"a process of the engine ended {while_}: {words}"
        case sessions.HARNESS_FAILED:
            kind, reason = Status.ERROR, f"the worker itself failed {while_}"
        case _ if status < 0:
            kind, reason = Status.CRASH, f"the worker was ended by {_signal(-status)} {while_}"
        case _ if not loaded:
            kind, reason = Status.ERROR, f"the engine did not start: {ended}"
        case 0:
            kind, reason = Status.MISSING, f"{ended}, without an error"
        case _:
            kind, reason = Status.CRASH, ended
    killed = attempt.outside or (not words and -status in sessions.FROM_OUTSIDE)
    return Death(
        kind,
        reason,
        attempt.case,
        final=bool(overdue) and not loaded,
        harness=status == sessions.HARNESS_FAILED and not overdue,
        outside=killed and not overdue,
    )


def _signal(number: int) -> str:
    if number == signal.SIGKILL:
        return "SIGKILL (out of memory?)"
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


@dataclass
class Trials:
    """The cells of a group without an outcome, in the order for the next worker.

    A cell in which a worker died is retried after the others, alone in a fresh worker. It is given
    up after `tries` deaths.
    """

    waiting: list[Case]
    tries: int = DEATHS_OF_A_CELL
    _deaths: Counter[str] = field(default_factory=Counter)
    _last: dict[str, Death] = field(default_factory=dict)
    _idle: int = 0
    _barren: int = 0

    def finished(self, keys: Sequence[str]) -> None:
        done = set(keys)
        self.waiting = [case for case in self.waiting if case.key not in done]

    def for_next_worker(self) -> list[Case]:
        """Return the cells that may share a worker; if there are none, one that may not."""
        shared = [case for case in self.waiting if not self._deaths[case.key]]
        return shared or self.waiting[:1]

    def died(self, death: Death, *, progressed: bool) -> dict[str, Death]:
        """Return the cells that are given up, each with the death to record for it.

        `progressed` says whether the worker had finished any cell before.
        """
        self._barren = 0 if progressed else self._barren + 1
        self._idle = self._idle + 1 if not death.case and not progressed else 0
        given_up: dict[str, Death] = {}
        if death.case:
            self._deaths[death.case] += 1
            self._last[death.case] = death
            if self._deaths[death.case] >= self.tries:
                given_up[death.case] = death
            self.waiting.sort(key=lambda case: case.key == death.case)
        elif death.final or self._idle >= DEATHS_OF_A_CELL:
            given_up = {case.key: death for case in self.waiting}
        if self._barren >= DEATHS_IN_A_ROW:
            words = f"not tried: {DEATHS_IN_A_ROW} workers in a row finished no cell; the last: "
            untried = Death(Status.ERROR, words + death.reason)
            given_up = {
                case.key: self._last.get(case.key) or replace(untried, case=case.key)
                for case in self.waiting
            } | given_up
        self.finished(tuple(given_up))
        return given_up

    def give_up(self, death: Death) -> dict[str, Death]:
        """Give up the running cell at once."""
        self.finished((death.case,))
        return {death.case: death}


def in_the_trace(log: str, scenarios: Sequence[Path]) -> tuple[Frame, ...]:
    """Return the line of the block in which a thread hung, or nothing if every thread was in other
    code, such as waiting for the engine.
    """
    for stack in _THREAD.split(log)[1:]:
        # A blank line ends the stack; the rest is other output.
        calls = _CALL.findall(stack.partition("\n\n")[0])
        own = next(((path, line) for path, line in calls if not _LIBRARY.search(path)), None)
        if own is None:
            continue
        path, line = own
        folder = next(
            (scenario for scenario in scenarios if Path(path).is_relative_to(scenario)), None
        )
        if _BLOCK.fullmatch(path) or folder is not None:
            name = path if folder is None else f"{folder.name}/{Path(path).relative_to(folder)}"
            return (Frame(Owner.SCENARIO, name, int(line)),)
    return ()
