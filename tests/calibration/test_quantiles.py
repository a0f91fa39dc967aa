"""From scores to thresholds: the conformal quantile, the caps, and who needs more than them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.calibration import CAP_MAX, CAP_MED, Score, calibrate
from conformance.calibration.quantiles import conformal
from conformance.errors import ConformanceError
from conformance.records import Calibration, Thresholds


def scores(
    count: int, q_med: float = 1.0, q_max: float = 1.5, model: str = "llama", **more: bool
) -> list[Score]:
    return [
        Score(model, f"case{n}", "eager", q_med + n * 1e-6, q_max, "p0/s0/logits", **more)
        for n in range(count)
    ]


def calibrated(found: list[Score]) -> Calibration:
    return calibrate(found, date="2026-01-01", device="cpu", versions={"torch": "2"})


@given(st.lists(st.floats(0, 10), min_size=1, max_size=400), st.floats(0.001, 0.5))
def test_at_most_the_accepted_share_lies_above_the_quantile(
    values: list[float], alarm: float
) -> None:
    above = sum(value > conformal(values, alarm) for value in values)
    assert above <= alarm * (len(values) + 1)


@given(st.integers(1, 1000), st.sampled_from([1 / 300, 0.05, 0.2]))
def test_the_quantile_is_the_smallest_that_bounds_a_further_case(count: int, alarm: float) -> None:
    """Of n + 1 exchangeable scores the last exceeds the k-th of the first n in (n+1-k)/(n+1)."""
    rank = int(conformal([float(n) for n in range(1, count + 1)], alarm))
    if rank < count:
        assert (count + 1 - rank) / (count + 1) <= alarm + 1e-12
        assert (count + 2 - rank) / (count + 1) > alarm - 1e-12


def test_thresholds_are_never_above_the_caps_and_the_model_is_named() -> None:
    found = calibrated([*scores(400), *scores(100, 2.0, 9.0, "loud")])
    assert (found.k_med, found.k_max) == (CAP_MED, CAP_MAX)
    assert found.beyond == ("loud",)
    assert found.alarms == 100
    assert {one.model: one.alarms for one in found.models} == {"llama": 0, "loud": 100}


def test_thresholds_are_never_below_the_starting_values() -> None:
    found = calibrated(scores(400, 0.5, 0.6))
    assert (found.k_med, found.k_max) == (Thresholds().k_med, Thresholds().k_max)


def test_the_model_that_is_furthest_apart_sets_the_thresholds() -> None:
    found = calibrated([*scores(900), *scores(3, 1.4, 2.2, "wide")])
    assert (found.k_med, found.k_max) == (1.401, 2.2)
    assert found.alarms == 0
    assert found.models[1].max == 2.2


def test_a_run_beyond_a_mere_bound_is_an_alarm_though_its_ratios_are_small() -> None:
    found = calibrated([*scores(400), *scores(2, model="massive", bounded=False)])
    assert found.alarms == 2


def test_too_few_cases_are_refused_however_many_runs_they_have() -> None:
    few = [score for score in scores(299) for _ in range(6)]
    with pytest.raises(ConformanceError, match="299 clean cases are too few"):
        calibrated(few)
    assert calibrated(scores(300)).cases == 300


def test_the_digest_of_the_scores_tells_one_calibration_from_another() -> None:
    assert calibrated(scores(300)).scores == calibrated(scores(300)).scores
    assert calibrated(scores(300)).scores != calibrated(scores(300, 1.01)).scores
