"""Choose the next trial from the trials so far, or conclude the bisect; run trials to the end.

First the row is searched. The result is then isolated. For a release, the other packages that moved
with it are pinned to their old versions. For a lock file, the changes are reduced to the fewest
that are bad together.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product

from packaging.utils import canonicalize_name

from conformance.commands.bisect import candidates, halving
from conformance.commands.bisect.candidates import Candidate
from conformance.commands.bisect.halving import BisectionConclusion, BisectionEnding, Class
from conformance.commands.bisect.signature import Signatures, are_swapped, classify, is_same
from conformance.commands.bisect.state import BisectFolder, BisectionState, CandidateTrial
from conformance.runner.store.keys import PACKAGES
from conformance.spec.records import record

#: The key of the first bad candidate with all other packages pinned to their old versions.
HELD = "held"

#: How often each end is tried before the user hears that the ends are swapped.
_BEFORE_REFUSING = 2


@record()
class Next:
    """The next trial. `again`: the candidate was tried before, so no cache may be used."""

    candidate: Candidate
    again: bool = False


def choose_next(state: BisectionState) -> Next | BisectionConclusion:
    """Return the next trial, or the conclusion."""
    if step := _check_swapped(state):
        return step
    row = {candidate.key: candidate for candidate in state.candidates}
    trials = ((attempt.candidate, class_of(attempt, state)) for attempt in state.attempts)
    found = halving.step([*row], trials, state.asked.confirm)
    if isinstance(found, halving.Try):
        return Next(row[found.candidate], found.again)
    if state.locks and found.ending in (BisectionEnding.CULPRIT, BisectionEnding.RANGE):
        return _reduce(state, found)
    return _hold(state, found) if found.ending is BisectionEnding.CULPRIT else found


def _check_swapped(state: BisectionState) -> Next | BisectionConclusion | None:
    """Conclude that the ends are swapped, after trying both twice. None if they are not."""
    first, *_, last = state.candidates
    tested = [[one for one in state.of(end.key) if one.signatures] for end in (first, last)]
    pairs = list(product(*tested))
    if not pairs or not all(are_swapped(a.signatures, b.signatures) for a, b in pairs):
        return None
    for end, tries in zip((first, last), tested, strict=True):
        if len(tries) < min(_BEFORE_REFUSING, state.asked.confirm):
            return Next(end, again=True)
    return BisectionConclusion(BisectionEnding.SWAPPED, first.key, last.key)


def class_of(attempt: CandidateTrial, state: BisectionState) -> Class:
    """Classify an attempt by comparing it with the signatures of the two ends."""
    if not attempt.signatures:
        return Class.UNTESTABLE
    good, bad = ends(state)
    return classify(attempt.signatures, good, bad or good, state.asked.by, state.asked.neither)


def ends(state: BisectionState) -> tuple[Signatures, Signatures]:
    """Return the signatures of the good and the bad end; () for an end that has none yet."""
    first, last = (state.tested(state.candidates[index].key) for index in (0, -1))
    return (first.signatures if first else (), last.signatures if last else ())


def flaky(state: BisectionState, key: str) -> bool:
    """Return whether a candidate was good in one attempt and bad in another."""
    classes = {class_of(attempt, state) for attempt in state.of(key)}
    return {Class.GOOD, Class.BAD} <= classes


def neither(state: BisectionState) -> tuple[str, ...]:
    """Return the keys of candidates whose signatures match neither end."""
    signatures_of_ends = [end for end in ends(state) if end]
    odd = {
        attempt.candidate: None
        for attempt in state.attempts
        if attempt.signatures
        and not any(is_same(attempt.signatures, end, state.asked.by) for end in signatures_of_ends)
    }
    return tuple(odd)


def moved(good: CandidateTrial, bad: CandidateTrial, subject: str) -> dict[str, tuple[str, str]]:
    """Return the packages, except the subject, whose versions differ: before and after."""
    names = sorted({*good.versions, *bad.versions} - {canonicalize_name(subject)})
    pairs = {name: (good.versions.get(name, ""), bad.versions.get(name, "")) for name in names}
    return {name: pair for name, pair in pairs.items() if pair[0] != pair[1]}


def _hold(state: BisectionState, conclusion: BisectionConclusion) -> Next | BisectionConclusion:
    """Try the first bad candidate again with the relevant packages that moved along pinned."""
    good, bad = state.tested(conclusion.good), state.tested(conclusion.bad)
    if good is None or bad is None or state.of(HELD):
        return conclusion
    along = moved(good, bad, state.asked.subject)
    pins = tuple(
        f"{name}=={before}"
        for name, (before, after) in along.items()
        if name in PACKAGES and before and after
    )
    if not pins:
        return conclusion
    candidate = next(candidate for candidate in state.candidates if candidate.key == conclusion.bad)
    label = f"{candidate.label} with {', '.join(pins)}"
    return Next(Candidate(HELD, label, (*candidate.requirements, *pins)))


def _reduce(state: BisectionState, conclusion: BisectionConclusion) -> Next | BisectionConclusion:
    """Reduce the lock file's changes to the fewest that are bad by themselves."""
    good = state.locks[0]
    steps = candidates.changes(*state.locks)
    keys = [candidate.key for candidate in state.candidates]
    last = keys.index(conclusion.bad)
    suspects = (tuple(range(keys.index(conclusion.good), last)),)
    questions = halving.minimise(tuple(range(last)), suspects)
    try:
        subset = next(questions)
        while True:
            candidate = candidates.subset_of(good, steps, subset)
            tested = state.of(candidate.key)
            if not tested:
                return Next(candidate)
            subset = questions.send(class_of(tested[0], state) is Class.BAD)
    except StopIteration as end:
        cause: halving.Subset = end.value
    candidate = candidates.subset_of(good, steps, cause)
    tested = state.of(candidate.key)
    if any(class_of(attempt, state) is not Class.BAD for attempt in tested):
        return BisectionConclusion(BisectionEnding.UNSTEADY, conclusion.good, candidate.key)
    if len(tested) < state.asked.confirm:
        return Next(candidate, again=True)
    # A change is known to be needed only if the others without it were seen to be good.
    rests = [tuple(index for index in cause if index != dropped) for dropped in cause]
    first = [state.of(candidates.subset_of(good, steps, rest).key)[:1] for rest in rests]
    each_needed = all(attempts and class_of(attempts[0], state) is Class.GOOD for attempts in first)
    ending = BisectionEnding.CULPRIT if each_needed else BisectionEnding.RANGE
    return replace(conclusion, ending=ending, cause=cause)


#: Tries a candidate; the second argument says whether it was tried before.
Trier = Callable[[Candidate, bool], CandidateTrial]


def run_trials(
    folder: BisectFolder,
    trier: Trier,
    *,
    on_next: Callable[[Next], None] = lambda _: None,
    on_attempt: Callable[[CandidateTrial, Class], None] = lambda *_: None,
) -> BisectionConclusion:
    """Continue from what the folder holds until there is an answer. Each trial is saved before the
    next begins: an exception in `trier` ends the search, and nothing is lost.

    Raises ConformanceError if another process uses the folder.
    """
    with folder.alone():
        state = folder.read()
        while isinstance(step := choose_next(state), Next):
            on_next(step)
            attempt = trier(step.candidate, step.again)
            state = state.with_attempt(attempt)
            folder.write(state)
            on_attempt(attempt, class_of(attempt, state))
        return step
