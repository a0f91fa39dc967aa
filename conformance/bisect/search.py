"""Where along a row of candidates good becomes bad, some being untestable (pure).

Everything is a function of the evidence so far: `step` looks at it and says which candidate
to try next, or the answer. So a search that was interrupted goes on from its evidence, and
evidence from elsewhere may be put in front.

A candidate tried twice with different ends is *flaky* and relied upon no more. One wrong
verdict leads the search to itself: beyond it all verdicts agree, so it ends up as one of the
two neighbours of the answer. Both are therefore tried again before the answer is given.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

#: How often the two candidates that an answer rests on are tried in all.
CONFIRM = 3


class Class(StrEnum):
    """What one trial of a candidate came to."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"


class Trial(NamedTuple):
    """One piece of evidence: `candidate` counts from 0, the good end."""

    candidate: int
    outcome: Class


class Try(NamedTuple):
    """Try this candidate next; `again` says that it contradicts or carries something."""

    candidate: int
    again: bool = False


class Found(NamedTuple):
    """The last good candidate and the first bad one are `good` and `bad`.

    `between` are candidates of which nothing is known: untestable or flaky. When there are
    none, `bad` is the culprit; else the culprit is `bad` or one of them.
    """

    good: int
    bad: int
    between: tuple[int, ...] = ()


class WrongEnd(NamedTuple):
    """An end that is not what it was said to be."""

    candidate: int
    outcome: Class


class NotMonotone(NamedTuple):
    """These are known no better after repetition: bad before good, or an end that is flaky."""

    candidates: tuple[int, ...]


Answer = Found | WrongEnd | NotMonotone


def step(count: int, evidence: Sequence[Trial], confirm: int = CONFIRM) -> Try | Answer:
    """What to do next with `count` ≥ 2 candidates, of which 0 is good and the last is bad.

    Without flaky candidates a search tries at most 2 + ⌊log₂ m⌋ + 1 candidates for m between
    the ends, the untestable ones it meets, and `confirm` − 1 times both neighbours again.
    """
    if count < 2:
        raise ValueError("a search needs two ends")
    times = Counter(evidence)
    tallies = [_Tally(i, *(times[Trial(i, outcome)] for outcome in Class)) for i in range(count)]
    return (
        _ends(tallies, confirm) or _contradiction(tallies, confirm) or _narrower(tallies, confirm)
    )


class _Tally(NamedTuple):
    """All that is known of one candidate."""

    candidate: int
    good: int
    bad: int
    untestable: int

    @property
    def times(self) -> int:
        """How often it was tried. A repetition may be untestable, so all count."""
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
    """The last that is surely good, and the first that is surely bad."""
    good = [tally for tally in tallies if tally.surely(Class.GOOD)]
    bad = [tally for tally in tallies if tally.surely(Class.BAD)]
    return good[-1], bad[0]


def _contradiction(tallies: Sequence[_Tally], confirm: int) -> Try | Answer | None:
    """A bad candidate before a good one: whichever was tried less is tried again."""
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
    # The middle one of those that are left, so that every answer halves them.
    untried = [tally for tally in between if not tally.times]
    if untried:
        return Try(untried[len(untried) // 2].candidate)
    doubtful = min(good, bad, key=lambda tally: tally.times)
    if doubtful.times < confirm:
        return Try(doubtful.candidate, again=True)
    return Found(good.candidate, bad.candidate, tuple(tally.candidate for tally in between))
