"""Search a row of candidates for the one where good becomes bad; some are untestable (pure).

`step` is a function of the evidence so far: it returns the candidate to try next, or the answer. So
an interrupted search continues from its evidence, and evidence from elsewhere can be added.

A candidate that was both good and bad is *flaky* and is not relied on. One wrong verdict leads the
search to itself: beyond it all verdicts agree, so it becomes one of the two neighbours of the
answer. Both are therefore tried again before the answer is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

#: How often the two candidates that an answer rests on are tried in total.
CONFIRM = 3


class Class(StrEnum):
    """The outcome of one trial of a candidate."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"


class TrialOutcome(NamedTuple):
    """One piece of evidence: `candidate` counts from 0, the good end."""

    candidate: int
    outcome: Class


class Try(NamedTuple):
    """The candidate to try next. `again`: it contradicts another one, or an answer rests on it."""

    candidate: int
    again: bool = False


class CulpritRange(NamedTuple):
    """The answer: `good` is the last good candidate, `bad` the first bad one.

    `between` are untestable or flaky candidates. Without them, `bad` is the culprit; otherwise the
    culprit is `bad` or one of them.
    """

    good: int
    bad: int
    between: tuple[int, ...] = ()


class WrongEnd(NamedTuple):
    """An end whose outcome is not the one that the user claimed."""

    candidate: int
    outcome: Class


class NotMonotone(NamedTuple):
    """Candidates that stay in doubt after repetition: bad before good, or a flaky end."""

    candidates: tuple[int, ...]


Answer = CulpritRange | WrongEnd | NotMonotone


def step(count: int, evidence: Sequence[TrialOutcome], confirm: int = CONFIRM) -> Try | Answer:
    """Return the next step for `count` ≥ 2 candidates; the first is good and the last is bad.

    With m candidates between the ends and none of them flaky, a search tries at most 2 + ⌊log₂ m⌋ +
    1 candidates, the untestable ones it meets, and `confirm` − 1 times both neighbours.
    """
    if count < 2:
        raise ValueError("a search needs two ends")
    times = Counter(evidence)
    tallies = [
        _Tally(i, *(times[TrialOutcome(i, outcome)] for outcome in Class)) for i in range(count)
    ]
    return (
        _ends(tallies, confirm) or _contradiction(tallies, confirm) or _narrower(tallies, confirm)
    )


class _Tally(NamedTuple):
    """The evidence on one candidate."""

    candidate: int
    good: int
    bad: int
    untestable: int

    @property
    def times(self) -> int:
        """Return how often it was tried. A repetition may be untestable, so all count."""
        return self.good + self.bad + self.untestable

    @property
    def silent(self) -> bool:
        return not (self.good or self.bad)

    @property
    def flaky(self) -> bool:
        return bool(self.good and self.bad)

    def surely(self, outcome: Class) -> bool:
        if self.flaky:
            return False
        return bool(self.good if outcome is Class.GOOD else self.bad)


def _ends(tallies: Sequence[_Tally], confirm: int) -> Try | Answer | None:
    first, last = tallies[0], tallies[-1]
    for end in (first, last):
        if not end.times:
            return Try(end.candidate)
        if end.silent:
            return WrongEnd(end.candidate, Class.UNTESTABLE)
        if end.flaky:
            return NotMonotone((end.candidate,))
    for end, wrong in ((first, Class.BAD), (last, Class.GOOD)):
        if end.surely(wrong):
            if end.times < confirm:
                return Try(end.candidate, again=True)
            return WrongEnd(end.candidate, wrong)
    return None


def _innermost(tallies: Sequence[_Tally]) -> tuple[_Tally, _Tally]:
    """Return the last candidate that is surely good, and the first that is surely bad."""
    good = [tally for tally in tallies if tally.surely(Class.GOOD)]
    bad = [tally for tally in tallies if tally.surely(Class.BAD)]
    return good[-1], bad[0]


def _contradiction(tallies: Sequence[_Tally], confirm: int) -> Try | Answer | None:
    """If a bad candidate precedes a good one, try again the one with fewer trials."""
    good, bad = _innermost(tallies)
    if good.candidate < bad.candidate:
        return None
    doubtful = min(bad, good, key=lambda tally: tally.times)
    if doubtful.times < confirm:
        return Try(doubtful.candidate, again=True)
    return NotMonotone((bad.candidate, good.candidate))


def _narrower(tallies: Sequence[_Tally], confirm: int) -> Try | Answer:
    good, bad = _innermost(tallies)
    between = tallies[good.candidate + 1 : bad.candidate]
    # The middle one of the untried candidates, so that every answer halves them.
    untried = [tally for tally in between if not tally.times]
    if untried:
        return Try(untried[len(untried) // 2].candidate)
    doubtful = min(good, bad, key=lambda tally: tally.times)
    if doubtful.times < confirm:
        return Try(doubtful.candidate, again=True)
    return CulpritRange(good.candidate, bad.candidate, tuple(tally.candidate for tally in between))
