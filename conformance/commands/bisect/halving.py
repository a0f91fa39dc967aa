"""Search a row of candidates for the one where good becomes bad; some are untestable (pure).

`step` is a function of the evidence so far: it returns the candidate to try next, or the answer. So
an interrupted search continues from its evidence, and evidence from elsewhere can be added.

A candidate that was both good and bad is *flaky* and is not relied on. One wrong verdict leads the
search to itself: beyond it all verdicts agree, so it becomes one of the two neighbours of the
answer. Both are therefore tried again before the answer is given.

`minimise` reduces a set of changes that is bad to the fewest that are bad together.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Sequence
from enum import StrEnum
from itertools import pairwise
from typing import NamedTuple

from conformance.spec.records import record

#: How often the two candidates that an answer rests on are tried in total.
CONFIRM = 3


class Class(StrEnum):
    """The outcome of one trial of a candidate."""

    GOOD = "good"
    BAD = "bad"
    UNTESTABLE = "untestable"


class SignaturePart(StrEnum):
    """A part of a signature. `bitwise` distinguishes `exact` from `match`; both pass."""

    VERDICT = "verdict"
    DIAGNOSIS = "diagnosis"
    LAYOUT = "layout"
    BITWISE = "bitwise"


#: The parts that count by default.
USUAL = (SignaturePart.VERDICT, SignaturePart.DIAGNOSIS, SignaturePart.LAYOUT)


class BisectionEnding(StrEnum):
    """How a bisect ends."""

    CULPRIT = "culprit"
    RANGE = "range"
    SAME = "no difference"
    SWAPPED = "swapped ends"
    UNTESTABLE = "untestable end"
    UNSTEADY = "not monotone"


#: Indices of changes, ascending.
Subset = tuple[int, ...]


class Try(NamedTuple):
    """The candidate to try next. `again`: it contradicts another one, or an answer rests on it."""

    candidate: str
    again: bool = False


@record()
class BisectionConclusion:
    """How a bisect ended. `good` is the key of the last good candidate and `bad` that of the first
    bad one, or both are in doubt. `bad` is empty if the good end cannot be tested.

    `between` are untestable or flaky candidates. Without them, `bad` is the culprit; otherwise the
    culprit is `bad` or one of them. `cause` names the changes that are bad together if several
    packages moved.
    """

    ending: BisectionEnding
    good: str = ""
    bad: str = ""
    between: tuple[str, ...] = ()
    cause: Subset = ()


def step(
    candidates: Sequence[str], evidence: Iterable[tuple[str, Class]], confirm: int = CONFIRM
) -> Try | BisectionConclusion:
    """Return the next step for ≥ 2 candidates; the first is good and the last is bad.

    With m candidates between the ends and none of them flaky, a search tries at most 2 + ⌊log₂ m⌋ +
    1 candidates, the untestable ones it meets, and `confirm` − 1 times both neighbours.
    """
    if len(candidates) < 2:
        raise ValueError("a search needs two ends")
    times = Counter(evidence)
    tallies = [
        _Tally(place, key, *(times[key, outcome] for outcome in Class))
        for place, key in enumerate(candidates)
    ]
    return _try_ends(tallies, confirm) or _narrow(tallies, confirm)


class _Tally(NamedTuple):
    """The evidence on one candidate: how often it was good, bad and untestable."""

    place: int
    key: str
    good: int
    bad: int
    untestable: int

    @property
    def times(self) -> int:
        """How often it was tried. A repetition may be untestable, so all count."""
        return self.good + self.bad + self.untestable

    @property
    def surely(self) -> Class | None:
        """Its class; None if it is flaky or was not tried."""
        if self.good and self.bad:
            return None
        if self.good or self.bad:
            return Class.GOOD if self.good else Class.BAD
        return Class.UNTESTABLE if self.untestable else None


def _try_ends(tallies: Sequence[_Tally], confirm: int) -> Try | BisectionConclusion | None:
    ends = (tallies[0], tallies[-1])
    for end in ends:
        if not end.times:
            return Try(end.key)
        bad = end.key if end.place else ""
        if end.surely is Class.UNTESTABLE:
            return BisectionConclusion(BisectionEnding.UNTESTABLE, ends[0].key, bad)
        if end.surely is None:
            return BisectionConclusion(BisectionEnding.UNSTEADY, end.key, end.key)
    for end, claimed in zip(ends, (Class.GOOD, Class.BAD), strict=True):
        if end.surely is not claimed:
            if end.times < confirm:
                return Try(end.key, again=True)
            bad = end.key if end.place else ""
            return BisectionConclusion(BisectionEnding.SAME, ends[0].key, bad)
    return None


def _narrow(tallies: Sequence[_Tally], confirm: int) -> Try | BisectionConclusion:
    """Try between the last candidate that is surely good and the first that is surely bad.

    If a bad candidate precedes a good one, the one with fewer trials is tried again.
    """
    good = [tally for tally in tallies if tally.surely is Class.GOOD][-1]
    bad = next(tally for tally in tallies if tally.surely is Class.BAD)
    between = tallies[good.place + 1 : bad.place]
    contradiction = bad.place < good.place
    # The middle one of the untried candidates, so that every answer halves them.
    untried = [tally for tally in between if not tally.times]
    if untried:
        return Try(untried[len(untried) // 2].key)
    doubtful = min((bad, good) if contradiction else (good, bad), key=lambda tally: tally.times)
    if doubtful.times < confirm:
        return Try(doubtful.key, again=True)
    if contradiction:
        return BisectionConclusion(BisectionEnding.UNSTEADY, good.key, bad.key)
    ending = BisectionEnding.RANGE if between else BisectionEnding.CULPRIT
    return BisectionConclusion(ending, good.key, bad.key, tuple(one.key for one in between))


def minimise(changes: Subset, suspects: Sequence[Subset] = ()) -> Generator[Subset, bool, Subset]:
    """Yield subsets, receive whether each is bad, and return a bad one from which no single change
    can be left out. All `changes` together must be bad; `suspects` are tried first.

    The algorithm is ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
    Input", IEEE Transactions on Software Engineering 28 (2002), section 3. Every subset that is not
    bad, untestable ones included, counts as good.
    """
    for suspect in suspects:
        if len(suspect) < len(changes) and (yield suspect):
            changes = suspect
            break
    pieces = 2
    while len(changes) > 1:
        smaller = yield from _find_smaller(changes, pieces)
        if smaller:
            pieces = 2 if len(smaller) * 2 <= len(changes) else max(pieces - 1, 2)
            changes = smaller
        elif pieces < len(changes):
            pieces = min(len(changes), 2 * pieces)
        else:
            break
    return changes


def _find_smaller(changes: Subset, count: int) -> Generator[Subset, bool, Subset]:
    """Return a bad piece out of `count`, or else a bad complement of one; () if there is none."""
    bounds = [len(changes) * index // count for index in range(count + 1)]
    pieces = [changes[a:b] for a, b in pairwise(bounds)]
    for piece in pieces:
        if (yield piece):
            return piece
    for piece in pieces if count > 2 else ():
        remaining = tuple(change for change in changes if change not in piece)
        if (yield remaining):
            return remaining
    return ()
