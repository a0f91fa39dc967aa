"""What the end of a worker means, and who is tried again (pure)."""

from __future__ import annotations

import signal
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from conformance.processes import sessions
from conformance.records import Case, Status

#: A cell under which a worker died so often is recorded and not tried again.
DEATHS_OF_A_CELL = 2

#: After so many workers in a row that finished no cell, the group is given up.
DEATHS_IN_A_ROW = 6


@dataclass(frozen=True)
class Death:
    """The end of a worker before its time.

    `case` is the cell it was running, "" while loading or between cells; `final` says
    that another worker would end alike, `harness` that the engine is not to blame, `outside`
    that neither is: somebody else ended it.
    """

    status: Status
    reason: str
    case: str = ""
    final: bool = False
    harness: bool = False
    outside: bool = False


def explain(
    status: int, *, case: str, loaded: bool, overdue: str, words: str, outside: bool = False
) -> Death:
    """Name the end of a worker from its exit status (negative: the signal that ended it).

    `overdue` says which limit had passed when the runner killed it, `words` what the
    worker itself said before it gave up on a dead engine, `outside` that somebody killed that.
    """
    while_ = f"while running {case}" if case else "between cells" if loaded else "while loading"
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
    return Death(
        kind,
        reason,
        case,
        final=bool(overdue) and not loaded,
        harness=status == sessions.HARNESS_FAILED and not overdue,
        outside=not overdue and (outside or (not words and -status in sessions.FROM_OUTSIDE)),
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
    """The cells of a group that have no outcome, in the order of the next worker.

    A cell under which a worker died runs again when the others are done, alone in a fresh worker.
    After so many `tries` it is given up.
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
        """Return the cells that may share a worker; when there are none, one that may not."""
        shared = [case for case in self.waiting if not self._deaths[case.key]]
        return shared or self.waiting[:1]

    def died(self, death: Death, *, progressed: bool) -> dict[str, Death]:
        """The cells that are given up, each with what is recorded for it.

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
            given_up = {case.key: self._hopeless(case, death) for case in self.waiting} | given_up
        self.finished(tuple(given_up))
        return given_up

    def _hopeless(self, case: Case, death: Death) -> Death:
        """A cell is not blamed for the deaths of others: it says that it was not tried."""
        own = self._last.get(case.key)
        if own is not None:
            return own
        words = f"not tried: {DEATHS_IN_A_ROW} workers in a row finished no cell; the last: "
        return Death(Status.ERROR, words + death.reason, case.key)
