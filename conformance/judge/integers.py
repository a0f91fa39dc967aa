"""Integers that a trace makes of numbers, such as the ids of the largest logits (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.records import Precision, Verdict

#: Standard deviations of a count of flips, √n, by which a run may have more than an honest one.
DEVIATIONS = 4.0


def compare(
    candidate: Tensor, truth: Tensor, honest: Sequence[Tensor], precision: Precision
) -> tuple[Verdict, str]:
    """Equal, or how many are not.

    In float32 they must be equal. In bf16 the largest of two numbers that are nearly as large is
    the one or the other by rounding: where the honest bf16 runs have flips too, up to n of them,
    n + 4·√n are theirs as well (flips are rare and about independent: a Poisson count with the mean
    that the honest runs share, whose standard deviation is √n). More is `drift`. Where no honest
    run has any, neither may the candidate; and where all of them only order the same numbers
    otherwise, it may have no others.
    """
    unequal = candidate != truth
    count = int(unequal.sum())
    if not count:
        return Verdict.EXACT, ""
    first = torch.nonzero(unequal)[0].tolist() if candidate.ndim else []
    words = f"{count} of {candidate.numel()} integers differ, the first at {first}"
    flips = max((int((member != truth).sum()) for member in honest), default=0)
    if precision is Precision.FLOAT32 or not flips:
        return Verdict.WRONG, words
    words += f"; up to {flips} in transformers' own bf16 runs"
    if all(_same_in_rows(member, truth) for member in honest) and not _same_in_rows(
        candidate, truth
    ):
        return Verdict.WRONG, f"{words}, which order the same ones otherwise, and not others"
    within = count <= flips + DEVIATIONS * math.sqrt(flips)
    return (Verdict.MATCH if within else Verdict.DRIFT), words


def _same_in_rows(left: Tensor, right: Tensor) -> bool:
    """Has every row the same integers, in whichever order?"""
    if not left.ndim:
        return bool(left == right)
    return torch.equal(left.sort(dim=-1).values, right.sort(dim=-1).values)
