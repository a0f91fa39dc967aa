"""Integers that a trace makes of numbers, such as the ids of the largest logits (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from conformance.judge.measures import metrics, rounded
from conformance.records import FLOAT32_LIMITS, Precision, Verdict

#: Standard deviations of a count of flips, √n, by which a run may have more than an honest one.
DEVIATIONS = 4.0


#: By how many times as far off as an honest run a candidate may be (`k_max`), it may have as many
#: times the flips: they are as frequent as the noise is large.
AS_FAR = {Precision.FLOAT32: FLOAT32_LIMITS.k_max, Precision.BF16: 1.0}
#: Of fewer integers none is taken for a number that was rounded: they may be ids.
MANY = 256


def compare(
    candidate: Tensor, truth: Tensor, honest: Sequence[Tensor], precision: Precision
) -> tuple[Verdict, str]:
    """Equal, or how many are not.

    The largest of two numbers that are nearly as large is the one or the other by rounding: where
    the honest runs have flips too, up to n of them, n + 4·√n are theirs as well (flips are rare and
    about independent: a Poisson count with the mean that the honest runs share, whose standard
    deviation is √n), in float32 of a hundred times as many. More is `drift` in bf16. Where no
    honest run has any, neither may the candidate; and where all of them only order the same numbers
    otherwise, it may have no others.

    In float32 many numbers that were rounded to integers may be neighbours of the truth's, as many
    as `rounded.chance` lets; and many ids in an order may be a few places further, as far apart as
    numbers lie that float32 may order otherwise.
    """
    unequal = candidate != truth
    count = int(unequal.sum())
    if not count:
        return Verdict.EXACT, ""
    first = torch.nonzero(unequal)[0].tolist() if candidate.ndim else []
    words = f"{count} of {candidate.numel()} integers differ, the first at {first}"
    if precision is Precision.FLOAT32 and (why := _by_rounding(candidate, truth, count)):
        return Verdict.MATCH, f"{words}; {why}"
    flips = max((int((member != truth).sum()) for member in honest), default=0)
    if not flips:
        return Verdict.WRONG, words
    words += f"; up to {flips} in transformers' own {precision} runs"
    if all(_same_in_rows(member, truth) for member in honest) and not _same_in_rows(
        candidate, truth
    ):
        return Verdict.WRONG, f"{words}, which order the same ones otherwise, and not others"
    most = AS_FAR[precision] * flips
    if count <= most + DEVIATIONS * math.sqrt(most):
        return Verdict.MATCH, words
    return (Verdict.DRIFT if precision is Precision.BF16 else Verdict.WRONG), words


def _by_rounding(candidate: Tensor, truth: Tensor, count: int) -> str:
    """Why `count` entries may differ though all that they were made of agrees; "" where not."""
    if _rounded(candidate, truth, count):
        return "as neighbours, where numbers were rounded"
    if _ordered(candidate, truth):
        return "they have changed places with their neighbours"
    return ""


def _rounded(candidate: Tensor, truth: Tensor, count: int) -> bool:
    """Are these numbers that were rounded, and the `count` that differ neighbours by chance?"""
    if truth.numel() < MANY:
        return False
    if truth.dtype is torch.bool:
        return rounded.chance_of(count, torch.full(truth.shape, rounded.OFF, dtype=torch.float64))
    right = metrics.rows(truth)
    apart = (metrics.rows(candidate) - right).abs()
    return bool(apart.max() <= 1) and rounded.chance_of(count, rounded.chance(right, 1.0))


def _ordered(candidate: Tensor, truth: Tensor) -> bool:
    """Are these many ids in one order, but for places as near as rounding brings them? Among n
    numbers those within δ of one are at most n·δ times their density, which is below one to their
    spread; twice that is let.
    """
    width = truth.shape[-1] if truth.ndim else 0
    if width < MANY or candidate.dtype is torch.bool or not _same_in_rows(candidate, truth):
        return False
    ids, places = truth.reshape(-1, width).sort(dim=-1)
    if bool((ids[:, 1:] == ids[:, :-1]).any()):
        return False
    moved = candidate.reshape(-1, width).argsort(dim=-1) - places
    return int(moved.abs().max()) <= math.ceil(2 * rounded.OFF * width)


def _same_in_rows(left: Tensor, right: Tensor) -> bool:
    """Has every row the same integers, in whichever order?"""
    if not left.ndim:
        return bool(left == right)
    return torch.equal(left.sort(dim=-1).values, right.sort(dim=-1).values)
