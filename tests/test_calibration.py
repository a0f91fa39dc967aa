"""Calibration: the conformal quantile, the caps, and who needs more than them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance import calibration
from conformance.calibration import CAP_MAX, CAP_MED, Score, calibrate, conformal
from conformance.errors import ConformanceError
from conformance.records import Thresholds


def scores(count, q_med=1.0, q_max=1.5, model="llama"):
    return [Score(model, f"case{n}", "eager", q_med + n * 1e-6, q_max) for n in range(count)]


@given(st.lists(st.floats(0, 10), min_size=1, max_size=400), st.floats(0.001, 0.5))
def test_at_most_the_accepted_share_lies_above_the_quantile(values, alarm):
    above = sum(value > conformal(values, alarm) for value in values)
    assert above <= alarm * (len(values) + 1)


def test_thresholds_are_never_above_the_caps_and_the_model_is_named():
    found = calibrate([*scores(400), *scores(100, 2.0, 9.0, "loud")], "2026-01-01")
    assert (found.k_med, found.k_max) == (CAP_MED, CAP_MAX)
    assert found.beyond == ("loud",)
    assert found.alarms == 100


def test_thresholds_are_never_below_the_starting_values():
    found = calibrate(scores(400, 0.5, 0.6), "2026-01-01")
    assert (found.k_med, found.k_max) == (Thresholds().k_med, Thresholds().k_max)


def test_the_model_that_is_furthest_apart_sets_the_thresholds():
    found = calibrate([*scores(900), *scores(3, 1.4, 2.2, "wide")], "2026-01-01")
    assert (found.k_med, found.k_max) == (1.401, 2.2)
    assert found.alarms == 0


def test_too_few_cases_are_refused():
    with pytest.raises(ConformanceError, match="too few"):
        calibrate(scores(299), "2026-01-01")


def test_a_file_that_says_more_than_the_caps_is_held_to_them(tmp_path):
    found = calibrate(scores(400, 1.4, 2.5), "2026-01-01")
    path = tmp_path / "calibration.json"
    calibration.write(path, found)
    assert calibration.read(path).k_max == 2.5
    path.write_text(path.read_text().replace("2.5", "25.0"))
    assert calibration.read(path).k_max == CAP_MAX


def test_without_a_file_the_starting_values_hold(tmp_path):
    assert calibration.read(tmp_path / "none.json") == Thresholds()
