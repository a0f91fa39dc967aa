"""The pure search: planted faults, untestable and flaky candidates; and delta debugging."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.commands.bisect.halving import (
    CONFIRM,
    BisectionConclusion,
    BisectionEnding,
    Class,
    Try,
    minimise,
    step,
)

GOOD, BAD, UNTESTABLE = Class.GOOD, Class.BAD, Class.UNTESTABLE


def search(count, ask, evidence=()):
    """Every candidate asked for, in order, and the answer."""
    evidence = list(evidence)
    asked = []
    while isinstance(found := step(range(count), evidence), Try):
        assert len(asked) < 20 * count, "the search does not end"
        asked.append(found.candidate)
        evidence.append((found.candidate, ask(found.candidate)))
    return found, asked


def answer(good, bad):
    between = tuple(range(good + 1, bad))
    ending = BisectionEnding.RANGE if between else BisectionEnding.CULPRIT
    return BisectionConclusion(ending, good, bad, between)


def expected(count, fault, out):
    """By definition: the testable neighbours of the fault, and what lies between."""
    good = max(i for i in range(fault) if i not in out)
    bad = min(i for i in range(fault, count) if i not in out)
    return answer(good, bad)


def planted(fault, out=()):
    def ask(index):
        if index in out:
            return UNTESTABLE
        return BAD if index >= fault else GOOD

    return ask


@st.composite
def rows(draw, most=60):
    """Candidates with a fault, and which of them (never an end) are untestable."""
    count = draw(st.integers(2, most))
    fault = draw(st.integers(1, count - 1))
    inner = st.integers(1, count - 2) if count > 2 else st.nothing()
    out = draw(st.frozensets(inner, max_size=count)) if count > 2 else frozenset()
    return count, fault, out


@given(rows(most=300))
def test_the_fault_is_found_in_the_logarithm_and_the_untestable_ones_that_are_met(row):
    count, fault, out = row
    found, asked = search(count, planted(fault, out))
    assert found == expected(count, fault, out)
    met = sum(index in out for index in asked)
    halvings = math.floor(math.log2(count - 2)) + 1 if count > 2 else 0
    assert len(asked) <= 2 + halvings + met + 2 * (CONFIRM - 1)
    assert asked[:2] == [0, count - 1]
    if not out:
        assert asked.count(fault - 1) == asked.count(fault) == CONFIRM


@st.composite
def flaky_rows(draw):
    """40 candidates, a fault, some untestable, one that is wrong up to twice in a row."""
    count = 40
    fault = draw(st.integers(1, count - 1))
    out = draw(st.frozensets(st.integers(1, count - 2), max_size=15))
    flaky = draw(st.sampled_from([i for i in range(1, count - 1) if i not in out]))
    lies = draw(st.lists(st.booleans(), min_size=1, max_size=12))
    return count, fault, out, flaky, lies


def lying(ask, flaky, lies):
    """`ask`, but this candidate lies when its script says so; never three times in a row."""
    told = []

    def asked(index):
        answer = ask(index)
        if index != flaky:
            return answer
        told.append(lies[len(told) % len(lies)] and told[-2:] != [True, True])
        return {GOOD: BAD, BAD: GOOD}[answer] if told[-1] else answer

    return asked


@given(flaky_rows())
def test_one_flaky_candidate_does_not_mislead(row):
    count, fault, out, flaky, lies = row
    found, _ = search(count, lying(planted(fault, out), flaky, lies))
    # Taken at its word, or not relied upon: both are right, anything else is not.
    assert found in (expected(count, fault, out), expected(count, fault, out | {flaky}))


@given(rows(), st.data())
def test_it_resumes_from_any_part_of_its_evidence(row, data):
    count, fault, out = row
    ask = planted(fault, out)
    whole, asked = search(count, ask)
    kept = [(i, ask(i)) for i in asked[: data.draw(st.integers(0, len(asked)))]]
    found, rest = search(count, ask, kept)
    assert (found, [key for key, _ in kept] + rest) == (whole, asked)


@given(
    st.integers(2, 12).flatmap(
        lambda count: st.tuples(
            st.just(count),
            st.lists(st.tuples(st.integers(0, count - 1), st.sampled_from(list(Class)))),
            st.lists(st.sampled_from(list(Class)), min_size=1),
        )
    )
)
def test_whatever_the_candidates_say_the_search_ends(drawn):
    """Also with evidence from elsewhere, and candidates that say what they please."""
    count, evidence, script = drawn
    told = iter(script * (40 * count))
    found, _ = search(count, lambda _: next(told), evidence)
    if found.ending in (BisectionEnding.CULPRIT, BisectionEnding.RANGE):
        assert 0 <= found.good < found.bad < count
        assert found == answer(found.good, found.bad)


@pytest.mark.parametrize(("end", "says"), [(0, BAD), (9, GOOD), (0, UNTESTABLE), (9, UNTESTABLE)])
def test_an_end_that_is_not_what_it_was_said_to_be(end, says):
    oracle = planted(5)
    found, asked = search(10, lambda index: says if index == end else oracle(index))
    ending = BisectionEnding.UNTESTABLE if says is UNTESTABLE else BisectionEnding.SAME
    assert found == BisectionConclusion(ending, 0, end or "")
    # A verdict against what the user said is not taken from one trial.
    assert asked.count(end) == (1 if says is UNTESTABLE else CONFIRM)


def test_a_wrong_first_verdict_of_an_end_is_no_answer():
    told = iter([GOOD])
    oracle = planted(5)
    found, _ = search(10, lambda index: next(told, BAD) if index == 9 else oracle(index))
    assert found == BisectionConclusion(BisectionEnding.UNSTEADY, 9, 9)


def test_a_lasting_contradiction_is_told_with_both_witnesses():
    def ask(index):
        return GOOD if index in (0, 1, 6) else BAD

    found, asked = search(10, ask, [(3, BAD), (6, GOOD)])
    assert found == BisectionConclusion(BisectionEnding.UNSTEADY, 6, 3)
    assert asked.count(3) == asked.count(6) == CONFIRM - 1


def test_a_search_needs_two_ends():
    with pytest.raises(ValueError, match="two ends"):
        step(["only"], [])


# --- the fewest changes that are bad together ------------------------------------


def run(changes, bad, suspects=()):
    """What `minimise` returns, and every subset it asked for."""
    asked = []
    steps = minimise(changes, suspects)
    try:
        subset = next(steps)
        while True:
            asked.append(subset)
            subset = steps.send(bad(subset))
    except StopIteration as end:
        return end.value, asked


@st.composite
def causes(draw):
    count = draw(st.integers(1, 24))
    cause = draw(st.sets(st.integers(0, count - 1), min_size=1, max_size=4))
    needs = draw(st.dictionaries(st.integers(0, count - 1), st.integers(0, count - 1), max_size=6))
    return count, cause, needs


@given(causes())
def test_the_cause_is_found_exactly_where_every_subset_can_be_tested(drawn):
    count, cause, _ = drawn
    found, asked = run(tuple(range(count)), cause.issubset)
    assert set(found) == cause
    assert len(asked) <= count**2 + 3 * count


@given(causes())
def test_no_change_can_be_left_out_where_some_only_install_together(drawn):
    """A change that needs another is untestable without it: such a subset is not bad."""
    count, cause, needs = drawn

    def bad(subset):
        whole = all(needs[change] in subset for change in subset if change in needs)
        return whole and cause.issubset(subset)

    found, _ = run(tuple(range(count)), bad)
    assert found == tuple(range(count)) or bad(found)
    assert not any(bad(tuple(c for c in found if c != left)) for left in found)


@pytest.mark.parametrize(
    ("count", "cause", "suspects", "questions"),
    [(20, {7}, [(7,)], [(7,)]), (8, {2, 5}, [(5,)], [(5,)]), (1, {0}, [], [])],
)
def test_suspects_are_tried_first(count, cause, suspects, questions):
    found, asked = run(tuple(range(count)), cause.issubset, suspects)
    assert (set(found), asked[: len(questions)]) == (cause, questions)
    assert len(cause) > 1 or asked == questions
