"""Delta debugging: the fewest changes that are bad together."""

from hypothesis import given
from hypothesis import strategies as st

from conformance.bisect.minimal import minimise


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


def test_a_suspect_that_does_it_alone_is_asked_first_and_is_enough():
    found, asked = run(tuple(range(20)), lambda subset: 7 in subset, suspects=[(7,)])
    assert (found, asked) == ((7,), [(7,)])


def test_a_wrong_suspect_costs_one_question():
    found, asked = run(tuple(range(8)), lambda subset: {2, 5} <= set(subset), suspects=[(5,)])
    assert found == (2, 5)
    assert asked[0] == (5,)


def test_one_change_needs_no_question():
    assert run((3,), lambda _: True) == ((3,), [])
