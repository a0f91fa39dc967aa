"""The exact interval of a counted rate."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.selftest.bounds import clopper_pearson


def test_none_of_n_alarms_bounds_their_rate():
    assert clopper_pearson(0, 300) == pytest.approx((0.0, 1 - 0.05 ** (1 / 300)))


def test_all_of_n_is_the_mirror_of_none():
    low, high = clopper_pearson(40, 40)
    assert (low, high) == pytest.approx((0.05 ** (1 / 40), 1.0))


def test_a_published_value():
    # Clopper and Pearson's own example: 10 of 100 at 95 %.
    assert clopper_pearson(10, 100) == pytest.approx((0.0490, 0.1762), abs=5e-5)


@given(st.integers(1, 400).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n))))
def test_the_interval_holds_the_rate_and_more_trials_make_it_narrower(trial):
    count, total = trial
    low, high = clopper_pearson(count, total)
    assert 0 <= low <= count / total <= high <= 1
    wide = clopper_pearson(3 * count, 3 * total)
    assert wide[1] - wide[0] <= high - low


@pytest.mark.parametrize(("count", "total"), [(1, 0), (3, 2), (-1, 5)])
def test_what_is_no_rate_is_refused(count, total):
    with pytest.raises(ValueError, match="is no rate"):
        clopper_pearson(count, total)
