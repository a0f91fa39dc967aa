"""A verdict in words: what is said about each kind of failure, and what is not said."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from conformance.report import terminal_text, words
from conformance.spec.records import CellResult, Gain, Relation, Results, Verdict


def said(results: Results, cell: CellResult) -> str:
    return "\n".join(words.reasoning(cell, terminal_text.context(results, cell)))


def first(results: Results, verdict: Verdict) -> CellResult:
    return next(cell for cell in results.cells if cell.verdict is verdict)


@pytest.mark.parametrize("verdict", list(Verdict))
def test_every_verdict_is_explained_with_its_own_reason(results: Results, verdict: Verdict) -> None:
    cell = first(results, verdict)
    text = said(results, cell)
    assert text.startswith(f"{verdict.value}: ")
    assert cell.reason in text


def test_a_wrong_cell_says_from_which_layer_and_how_far(results: Results) -> None:
    text = said(results, first(results, Verdict.WRONG))
    assert "The first layer that is off is 2 (edited/p0/s0/stream.2)" in text
    assert "on pipeline stage 1 of 2" in text
    assert "16× is allowed" in text
    assert "match on hf, match on vllm-pp1" in text
    assert "The write landed" in text


def test_a_failure_that_begins_at_a_stage_says_so(results: Results) -> None:
    text = said(results, first(results, Verdict.DROPPED))
    assert "The first layer that is off is 2" in text
    assert "the first layer of a pipeline stage" in text
    assert "Culprit: pipeline: the same cell is match on vllm-pp1." in text
    assert "had no effect)" in text and "The write landed" not in text


@pytest.mark.parametrize("verdict", [Verdict.EXACT, Verdict.MATCH])
def test_every_pass_says_what_it_would_have_found(results: Results, verdict: Verdict) -> None:
    cell = replace(first(results, Verdict.MATCH), verdict=verdict)
    best, worst = words.detectable(cell) or (0.0, 0.0)
    assert 0 < best < worst
    assert f"from a relative size of {words.percent(best)} (best place)" in said(results, cell)
    assert words.line(cell) == (
        f"finds errors from {words.percent(best)} to {words.percent(worst)}"
    )
    failed = replace(cell, verdict=Verdict.WRONG)
    assert "would have been found" not in said(results, failed)
    assert words.line(failed) == words.headline(failed)


def test_a_pass_of_a_write_says_which_gain_it_would_have_found(results: Results) -> None:
    cell = first(results, Verdict.MATCH)
    gains = [Gain(1.0, 0.0, sigma) for sigma in (0.05, 0.04, 0.2)]
    judged = tuple(replace(cell.observations[0], gain=gain) for gain in gains)
    text = said(results, replace(cell, observations=judged))
    assert "of another size would have been found from 32 % of it" in text


def test_broken_relations_and_failures_of_the_harness_are_said(results: Results) -> None:
    relations = (Relation("rows = prompt length", holds=True), Relation("a ≡ b", holds=False))
    text = said(results, replace(results.cells[0], relations=relations, harness=True))
    assert "broken: a ≡ b" in text and "rows = prompt length" not in text
    assert "not scored as the product's" in text


def test_nan_is_the_worst_gain_and_breaks_nothing(results: Results) -> None:
    cell = first(results, Verdict.DROPPED)
    odd = tuple(
        replace(j, gain=replace(j.gain, g=math.nan)) if j.gain else j for j in cell.observations
    )
    assert "NaN ±" in said(results, replace(cell, observations=odd))


@given(st.floats(-1e300, 1e300))
def test_numbers_are_read_back_to_three_digits(value: float) -> None:
    assert float(words.number(value)) == pytest.approx(value, rel=0.006)


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (1.0, "1"), (100.0, "100"), (38.04, "38"), (0.00123, "0.00123"), (7312.0, "7312"),
     (math.nan, "NaN"), (math.inf, "∞"), (None, "–"), (1e-9, "1.00e-09")],
)  # fmt: skip
def test_numbers_as_people_write_them(value: float | None, text: str) -> None:
    assert words.number(value) == text


def test_a_ratio_just_over_its_limit_does_not_look_equal_to_it() -> None:
    assert words.times(2.0031, 2.0) == "2.0031×"
    assert words.times(1.9999, 2.0) == "1.9999×"
    assert words.times(2.5, 2.0) == "2.5×"
    assert words.times(2.0031) == "2×"
