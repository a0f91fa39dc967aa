"""Integers that a trace computes: ids of the largest, ranks, masks, rounded values (pure).

An integer has no distance, so the baseline runs show how easily each flips: by entry and by row. In
float32 the bf16 baseline runs are the measure. Their noise is so much larger that whatever rounding
can flip in float32 flips in some of them: an entry that none of them moves is not due to rounding.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics, rounded
from conformance.judge.cell.measures.metrics import rows as _rows
from conformance.spec.records import BF16_LIMITS, FLOAT32_LIMITS, Precision, Verdict

#: How many standard deviations a count of flips may exceed a baseline run's.
DEVIATIONS = 4.0
#: Integers are rounded numbers if at least this many entries move in bf16 baseline runs, each by
#: less than this share of its row's size. Ids jump further.
MOVED, NEAR = 8, 0.25
#: How many places around an id are averaged over.
_WINDOW = 9


def share(width: int) -> float:
    """Return the share of the bf16 baseline runs' noise that a float32 candidate may have."""
    finest, coarsest = metrics.least(Precision.FLOAT32, width), metrics.least(Precision.BF16, width)
    return min(1.0, FLOAT32_LIMITS.k_max * finest / coarsest)


@dataclass(frozen=True, slots=True, eq=False)
class Runs:
    """The integers of the reference, of the precision's baseline runs, and of the bf16 ones.

    `coarse` is empty if the precision is bf16. `width` is the model's.
    """

    reference: Tensor
    baseline: Sequence[Tensor]
    coarse: Sequence[Tensor] = ()
    width: int = 1


def compare(candidate: Tensor, runs: Runs, precision: Precision) -> tuple[Verdict, str]:
    """Compare integers of the same shape; say how many differ and whether rounding explains it."""
    unequal = candidate != runs.reference
    count = int(unequal.sum())
    if not count:
        return Verdict.EXACT, ""
    first = torch.nonzero(unequal)[0].tolist() if candidate.ndim else []
    words = f"{count} of {candidate.numel()} integers differ, the first at {first}"
    flips = max((int((run != runs.reference).sum()) for run in runs.baseline), default=0)
    if flips:
        words += f"; up to {flips} in transformers' own {precision} runs"
    in_precision = _in_float32 if precision is Precision.FLOAT32 else _in_bf16
    verdict, why = in_precision(candidate, runs)
    return verdict, f"{words}; {why}" if why else words


def _in_bf16(candidate: Tensor, runs: Runs) -> tuple[Verdict, str]:
    """Judge by the flips in baseline runs: in all entries, per row, and where all of them agree.

    Flips are rare and nearly independent, so counts scatter by their square roots; up to three
    times as many is drift, as for noise. Rounded numbers and orders are also limited in how far
    they move.
    """
    baseline = torch.stack(list(runs.baseline))
    if torch.equal(baseline, runs.reference.expand_as(baseline)):
        return Verdict.WRONG, ""
    if reason := _others_in_a_row(candidate, runs.reference, runs.baseline):
        return Verdict.WRONG, reason
    flipped = baseline != runs.reference
    # An entry on which all other runs agree flips in one run as it may in a candidate.
    alone = flipped & (flipped.sum(dim=0) == 1)
    unequal = candidate != runs.reference
    sure = unequal & ~flipped.any(dim=0)
    worst = max(_excess(unequal, flipped), _excess(sure, alone))
    far = _far(candidate, replace(runs, coarse=runs.baseline))
    if worst <= 1 and far <= BF16_LIMITS.k_max:
        return Verdict.MATCH, ""
    if worst <= BF16_LIMITS.k_max and far <= BF16_LIMITS.far_max:
        return Verdict.DRIFT, ""
    return Verdict.WRONG, "other ones than rounding flips"


def _far(candidate: Tensor, runs: Runs) -> float:
    """Return how far the worst row moved, in multiples of the baseline; 0 for other integers."""
    where: Callable[[Tensor], Tensor] = _rows
    if not _rounded_numbers(runs):
        if not _orders(candidate, runs):
            return 0.0
        where = _places_of
    right = where(runs.reference)
    moved = [(where(run) - right).square().sum(dim=-1) for run in runs.coarse]
    squares = torch.stack(moved).mean(dim=0)
    usual = squares.clamp_min(float(squares.mean())).sqrt()
    return float(metrics.ratio((where(candidate) - right).norm(dim=-1), usual).max())


def _excess(mine: Tensor, theirs: Tensor) -> float:
    """Return the smallest factor on the baseline flips that makes the candidate's plausible.

    `theirs` is [runs, *shape]. All rows together and the worst single row count.
    """
    own = _rows(mine).sum(dim=-1)
    baseline = torch.stack([_rows(run).sum(dim=-1) for run in theirs])
    usual = baseline.sum(dim=-1).amax()
    rows = baseline.amax(dim=0).clamp_min(float(usual) / len(own))
    pairs = [(float(own.sum()), float(usual)), *zip(own.tolist(), rows.tolist(), strict=True)]
    return max(_factor(count, expected) for count, expected in pairs)


def _factor(count: float, expected: float) -> float:
    """Solve `count` ≤ f·x + DEVIATIONS·√(f·x) for f. One flip is always allowed."""
    if count <= 1:
        return 0.0
    if not expected:
        return math.inf
    root = (math.sqrt(DEVIATIONS**2 + 4 * count) - DEVIATIONS) / 2
    return root**2 / expected


def _in_float32(candidate: Tensor, runs: Runs) -> tuple[Verdict, str]:
    """Judge each entry by how it moves in the bf16 baseline runs, scaled by `share`.

    Rounded numbers must be neighbours of the reference's. Ids in an order swap places with
    neighbours. Any other entry must have a value that some baseline run has there. No row, nor the
    whole, may have more of these than chance allows.
    """
    if _rounded_numbers(runs):
        return _neighbours(candidate, runs)
    if _orders(candidate, runs):
        return _places(candidate, runs)
    if reason := _others_in_a_row(candidate, runs.reference, (*runs.baseline, *runs.coarse)):
        return Verdict.WRONG, reason
    shown = torch.stack([runs.reference, *runs.baseline, *runs.coarse])
    strange = (candidate != shown).all(dim=0)
    if bool(strange.any()):
        return Verdict.WRONG, f"{int(strange.sum())} are in no baseline run"
    moved = [(run != runs.reference).double() for run in runs.coarse]
    chance = share(runs.width) * (
        torch.stack(moved).mean(dim=0) if moved else torch.zeros(candidate.shape).double()
    )
    flips = [_rows(run != runs.reference) for run in runs.baseline]
    let = torch.stack(flips).sum(dim=-1).amax(dim=0) if flips else torch.zeros(1)
    return _by_chance(_rows(candidate != runs.reference), _rows(chance), let, "as in baseline runs")


def _by_chance(off: Tensor, chance: Tensor, let: Tensor, why: str) -> tuple[Verdict, str]:
    """Check that no more entries are off [rows, width] than chance and `let` [rows] allow."""
    let = let.expand(len(off))
    each = [
        rounded.chance_of(int(mine.sum() - extra) - 1, row)
        for mine, row, extra in zip(off, chance, let, strict=True)
    ]
    whole = rounded.chance_of(int(off.sum() - let.sum()) - 1, chance)
    if all(each) and whole:
        return Verdict.MATCH, why
    return Verdict.WRONG, "more than rounding flips"


def _moves(runs: Runs) -> Tensor:
    """Return how far the integers move in the bf16 baseline runs: float64 [runs, rows, width]."""
    right = _rows(runs.reference)
    return torch.stack([(_rows(run) - right).abs() for run in runs.coarse])


def _rounded_numbers(runs: Runs) -> bool:
    """Return whether they move by little of their size, as numbers do; ids jump anywhere."""
    if not runs.coarse or runs.reference.dtype is torch.bool:
        return False
    moves, right = _moves(runs), _rows(runs.reference)
    size = right.square().mean(dim=-1, keepdim=True).sqrt()
    near = bool((moves <= (NEAR * size).clamp_min(1.0)).all())
    return near and int((moves > 0).sum()) >= MOVED and not _orders(runs.reference, runs)


def _neighbours(candidate: Tensor, runs: Runs) -> tuple[Verdict, str]:
    """Judge rounded numbers by how far they are off and how many are."""
    may = share(runs.width) * _moves(runs).mean(dim=0).mean(dim=-1, keepdim=True)
    apart = (_rows(candidate) - _rows(runs.reference)).abs()
    if bool((apart > 1 + (DEVIATIONS * may).floor()).any()):
        return Verdict.WRONG, f"by up to {int(apart.max())}, where numbers were rounded"
    chance = may.clamp_max(1.0).expand_as(apart)
    why = "as neighbours, where numbers were rounded"
    return _by_chance(apart > 0, chance, torch.zeros(1), why)


def _orders(candidate: Tensor, runs: Runs) -> bool:
    """Return whether all runs have the same distinct ids in each row, in any order."""
    right = runs.reference
    if not right.ndim or right.dtype is torch.bool or right.shape[-1] < 2 or not runs.coarse:
        return False
    ids = right.sort(dim=-1).values
    distinct = not bool((ids[..., 1:] == ids[..., :-1]).any())
    every = (candidate, *runs.baseline, *runs.coarse)
    return distinct and all(_same_in_rows(run, right) for run in every)


def _places(candidate: Tensor, runs: Runs) -> tuple[Verdict, str]:
    """Judge ids in an order by how far each and its neighbours move in the bf16 baseline runs."""
    right = _places_of(runs.reference)
    moves = torch.stack([(_places_of(run) - right).abs() for run in runs.coarse]).mean(dim=0)
    # By place, averaged over its neighbourhood, and back to ids.
    order = _rows(runs.reference).argsort(dim=-1).argsort(dim=-1)
    at_place = moves.gather(-1, order)
    pooled = torch.nn.functional.avg_pool1d(
        at_place[:, None], _WINDOW, 1, _WINDOW // 2, count_include_pad=False
    )[:, 0]
    may = share(runs.width) * torch.zeros_like(moves).scatter(-1, order, pooled)
    apart = (_places_of(candidate) - right).abs()
    strange = apart > torch.where(may > 0, 1 + (DEVIATIONS * may).floor(), 0.0)
    if bool(strange.any()):
        return Verdict.WRONG, f"{int(strange.sum())} are further on than rounding brings them"
    chance = (2 * may).clamp_max(1.0)  # two ids swap places
    baseline = torch.stack([(_places_of(run) != right).sum(dim=-1) for run in runs.baseline])
    let = baseline.amax(dim=0) + 1
    return _by_chance(apart > 0, chance, let, "they have changed places with their neighbours")


def _places_of(ids: Tensor) -> Tensor:
    """Return the place of each id in its row, ids ascending: float64 [rows, width]."""
    return _rows(ids).argsort(dim=-1).double()


def _others_in_a_row(candidate: Tensor, reference: Tensor, baseline: Sequence[Tensor]) -> str:
    """Return why a row's ids are wrong, if baseline runs only reorder the same ids."""
    same = all(_same_in_rows(run, reference) for run in baseline)
    if not same or _same_in_rows(candidate, reference):
        return ""
    if any(not torch.equal(run, reference) for run in baseline):
        return "which order the same ones otherwise, and not others"
    return "no baseline run has others"


def _same_in_rows(left: Tensor, right: Tensor) -> bool:
    """Return whether every row has the same integers, in any order."""
    if not left.ndim:
        return bool(left == right)
    return torch.equal(left.sort(dim=-1).values, right.sort(dim=-1).values)
