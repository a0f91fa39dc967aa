"""What honest runs in float32 do not agree on is no pass, whatever an engine has there."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.judge.cell import HONEST_RUNS_DIFFER, judge_cell
from conformance.judge.judgement import Judgement
from conformance.judge.reference import read_reference
from conformance.records import Precision, Thresholds, Verdict

SITE = "p0/s0/stream"
ROWS = torch.randn(3, 64, generator=torch.Generator().manual_seed(0))


def judged(
    candidate: Tensor, *honest: Tensor, precision: Precision = Precision.FLOAT32
) -> Judgement:
    way = "float32" if precision is Precision.FLOAT32 else "bf16"
    ways = {f"{way}_{number}": {SITE: one} for number, one in enumerate(honest)}
    reference = read_reference({"truth": {SITE: ROWS}, **ways}, twin=False, precision=precision)
    assert not isinstance(reference, str), reference
    return judge_cell(
        {SITE: candidate},
        reference,
        twin=False,
        equal=(),
        prompt_ids=((1, 2, 3),),
        truth_ids=((1, 2, 3),),
        limits=Thresholds().of(precision),
    )


def other(row: int) -> Tensor:
    """An honest run that has something else in this row, as one of padding has."""
    rows = ROWS * (1 + 1e-7)
    rows[row] = torch.randn(64, generator=torch.Generator().manual_seed(1))
    return rows


def test_one_row_that_honest_runs_have_otherwise_proves_nothing() -> None:
    wrong = ROWS.clone()
    wrong[1] *= 1.5
    found = judged(wrong, ROWS * (1 - 1e-7), other(1))
    assert found.verdict is Verdict.UNKNOWN
    assert HONEST_RUNS_DIFFER in found.reason


def test_what_is_wrong_elsewhere_is_wrong_all_the_same() -> None:
    wrong = ROWS.clone()
    wrong[2] *= 1.5
    assert judged(wrong, ROWS * (1 - 1e-7), other(1)).verdict is Verdict.WRONG


def test_runs_that_differ_by_rounding_prove_what_they_did() -> None:
    found = judged(ROWS * (1 + 2e-7), ROWS * (1 - 1e-7), ROWS * (1 + 1e-7))
    assert found.verdict is Verdict.MATCH
    assert (found.observations[0].smallest or 1) < 1e-3
