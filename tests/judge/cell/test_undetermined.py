"""What baseline runs in float32 do not agree on is no pass, whatever an engine has there."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from conformance.judge.cell.judgement import Judgement
from conformance.judge.cell.reference import BASELINE_RUNS_DIFFER, NO_NUMBER
from conformance.spec.records import Precision, Verdict
from tests.judge.cell import toy

SITE = "p0/s0/stream"
ROWS = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))
ABOUT = (ROWS * (1 - 1e-7), ROWS * (1 + 1e-7))


def judged(
    candidate: Tensor,
    *baseline: Tensor,
    precision: Precision = Precision.FLOAT32,
    reference: Tensor = ROWS,
    numberless: bool = False,
) -> Judgement:
    way = "float32" if precision is Precision.FLOAT32 else "bf16"
    ways = {f"{way}_{number}": {SITE: one} for number, one in enumerate(baseline)}
    members = {"truth": {SITE: reference}, **ways}
    reading = {"numberless": numberless}
    return toy.judge({SITE: candidate}, members, precision=precision, reading=reading)


def other(row: int) -> Tensor:
    """A baseline run that has something else in this row, as one of padding has."""
    rows = ROWS * (1 + 1e-7)
    rows[row] = torch.randn(64, generator=torch.Generator().manual_seed(1))
    return rows


@pytest.mark.parametrize(("row", "verdict"), [(1, Verdict.UNKNOWN), (2, Verdict.WRONG)])
def test_one_row_that_baseline_runs_have_otherwise_proves_nothing(row, verdict):
    """What is wrong in another row is wrong all the same."""
    wrong = ROWS.clone()
    wrong[row] *= 1.5
    found = judged(wrong, ROWS * (1 - 1e-7), other(1))
    assert found.verdict is verdict
    assert (BASELINE_RUNS_DIFFER in found.reason) is (row == 1)


def test_runs_that_differ_by_rounding_prove_what_they_did() -> None:
    found = judged(ROWS * (1 + 2e-7), *ABOUT)
    assert found.verdict is Verdict.MATCH
    assert (found.observations[0].smallest or 1) < 1e-3


def masked(rows: Tensor, value: float = -math.inf) -> Tensor:
    """As a user masks scores: above the diagonal, and the whole of the last row."""
    places = torch.triu(torch.ones(3, 64, dtype=torch.bool), 1)
    places[2] = True
    return rows.masked_fill(places, value)


@pytest.mark.parametrize("value", [-math.inf, math.inf, math.nan])
def test_what_is_no_number_on_either_side_is_the_same_and_the_rest_is_judged(value: float) -> None:
    reference, baseline = masked(ROWS, value), [masked(one, value) for one in ABOUT]
    found = judged(
        masked(ROWS * (1 + 2e-7), value), *baseline, reference=reference, numberless=True
    )
    assert found.verdict is Verdict.MATCH, found.reason
    wrong = judged(masked(ROWS * 1.5, value), *baseline, reference=reference, numberless=True)
    assert wrong.verdict is Verdict.WRONG


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda rows: rows.nan_to_num(neginf=0.0), "the first at [0, 1]: a number where the"),
        (lambda rows: rows.masked_fill(rows.isinf(), math.nan), "[0, 1]: nan where the reference"),
        (lambda rows: rows.index_fill(1, torch.tensor([0]), math.nan), "[0, 0]: nan where the"),
    ],
)
def test_what_is_no_number_on_one_side_alone_is_named(spoil, words):
    reference, baseline = masked(ROWS), [masked(one) for one in ABOUT]
    found = judged(spoil(reference), *baseline, reference=reference, numberless=True)
    assert found.verdict is Verdict.NONFINITE and words in found.reason


def test_what_baseline_runs_have_no_number_in_at_other_places_proves_nothing() -> None:
    found = judged(ROWS, ROWS, masked(ROWS, math.nan), numberless=True)
    assert found.verdict is Verdict.UNKNOWN and BASELINE_RUNS_DIFFER in found.reason
    none = ROWS * math.nan
    found = judged(none, none, none, reference=none, numberless=True)
    assert found.verdict is Verdict.UNKNOWN and NO_NUMBER in found.reason


def test_a_scenarios_reference_has_to_be_finite() -> None:
    found = judged(ROWS, masked(ROWS), masked(ROWS), reference=masked(ROWS))
    assert found.verdict is Verdict.UNKNOWN and "not finite" in found.reason
