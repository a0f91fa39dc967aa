"""The lines of bench/cost_curves.py."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cost_curves import Point, fitted, table


@given(
    begin=st.floats(0.1, 1e3),
    slope=st.floats(0, 1e3),
    values=st.lists(st.integers(1, 10_000), min_size=3, max_size=8, unique=True),
)
def test_a_line_through_points_of_a_line_is_that_line(
    begin: float, slope: float, values: list[int]
) -> None:
    line = fitted(values, [begin + slope * value for value in values])
    assert line.furthest < 1e-6
    assert line.at(20_000) == pytest.approx(begin + slope * 20_000, rel=1e-6)


def test_how_far_the_furthest_point_is_off_is_said_as_a_share_of_it() -> None:
    assert fitted([1, 2, 3], [1.0, 2.0, 6.0]).furthest == pytest.approx(0.5)


def test_two_points_are_no_line() -> None:
    with pytest.raises(ValueError, match="three points"):
        fitted([1, 2], [1.0, 2.0])


def test_a_table_has_each_cost_with_its_line() -> None:
    points = [
        Point("layers", n, {"hf": 1.0 + n, "the rest": 2.0}, n * 2**20, 2**20) for n in (1, 2, 4)
    ]
    lines = table(points).splitlines()
    assert lines[0] == "| layers | 1 | 2 | 4 | line | furthest |"
    assert "| hf, s | 2.00 | 3.00 | 5.00 | 1.00 + 1 × layers | 0% |" in lines
    assert any(line.startswith("| whole, s | 4.00 | 5.00 | 7.00 |") for line in lines)
    assert any(line.startswith("| run, MiB | 1.00 | 2.00 | 4.00 |") for line in lines)


def test_what_grows_with_the_weights_grows_with_the_square_of_the_width() -> None:
    points = [Point("width", n, {"hf": 1.0 + 2e-6 * n * n}, 0, 0) for n in (256, 512, 1024)]
    assert "| hf, s | 1.13 | 1.52 | 3.10 | 1.00 + 2e-06 × width² | 0% |" in table(points)
