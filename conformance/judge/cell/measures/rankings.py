"""Ids of the largest numbers, weighed by those numbers (pure).

An id in another place is excused if its number equals the replaced one's within noise. As for
greedy ids, the reference's numbers and the baseline runs' scatter on the pair decide. The numbers
are found, not named: a tensor whose largest entries have these ids in the reference and every
baseline run, or the sorted numbers that `topk` returns with them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics
from conformance.spec.records import Limits, Precision

#: Numbers that match the order of some ids by chance this often are not theirs.
_CHANCE = 1 / 64

#: An id → its number in a row.
_Row = dict[int, float]


@dataclass(frozen=True)
class Numbers:
    """The numbers of each row's ids, in the reference and in each baseline run.

    `whole`: numbers are known for all existing ids.
    """

    reference: list[_Row]
    baseline: list[list[_Row]]
    whole: bool


@dataclass(frozen=True)
class Weighed:
    """The misplaced id that is furthest off.

    `chosen` stands in the place of `meant`; their numbers differ by `margin`. `noise` is the
    baseline runs' scatter on the pair.
    """

    chosen: int
    meant: int
    margin: float
    noise: float
    benign: bool


def numbers_of(mine: Tensor, ids: Sequence[Tensor], runs: Sequence[Tensor]) -> Numbers | None:
    """Return a tensor's numbers for the ids; None if these are not the ids of its largest.

    `ids` are those of the reference and the baseline runs, `runs` the tensor in the same runs, and
    `mine` the ids to weigh.
    """
    wanted = {int(one) for each in (mine, *ids) for one in each.flatten().tolist()}
    for find, whole in ((partial(_largest, wanted=wanted), True), (_sorted, False)):
        rows = [find(*pair) for pair in zip(ids, runs, strict=True)]
        found = [one for one in rows if one is not None]
        if len(found) == len(rows):
            return Numbers(found[0], found[1:], whole)
    return None


def _ranks(ids: Tensor, width: int) -> list[list[int]]:
    """Return the ids as rows, each a ranking of `width` ids."""
    return [list(map(int, row)) for row in ids.reshape(-1, width).tolist()]


def _bare(shape: Sequence[int]) -> list[int]:
    """Return a shape without a leading axis of one."""
    return list(shape[1:]) if shape and shape[0] == 1 else list(shape)


def _largest(ids: Tensor, numbers: Tensor, wanted: Collection[int]) -> list[_Row] | None:
    """Return the numbers if the ids are those of each row's largest, in order."""
    if not numbers.ndim or not numbers.numel():
        return None
    width = numbers.shape[-1]
    rows = numbers.reshape(-1, width)
    count = ids.numel() // len(rows)
    batch = _bare(numbers.shape[:-1])
    shapes = [[*batch, count], *([batch] if count == 1 else [])]
    if not 0 < count <= width or _bare(ids.shape) not in shapes:
        return None
    ranks = ids.reshape(len(rows), count).long()
    chance = len(rows) * sum(math.log(width - n) for n in range(count))
    inside = bool(((ranks >= 0) & (ranks < width)).all())
    if chance < -math.log(_CHANCE) or not inside:
        return None
    if not torch.equal(rows.gather(1, ranks), rows.topk(count).values):
        return None
    known = [one for one in sorted(wanted) if 0 <= one < width]
    return [dict(zip(known, row, strict=True)) for row in rows[:, known].double().tolist()]


def _sorted(ids: Tensor, numbers: Tensor) -> list[_Row] | None:
    """Return the numbers if each id has one and every row is sorted in descending order."""
    if ids.shape != numbers.shape or not ids.ndim or not ids.numel():
        return None
    rows, ranks = numbers.reshape(-1, ids.shape[-1]), _ranks(ids, ids.shape[-1])
    chance = len(rows) * math.lgamma(ids.shape[-1] + 1)
    down = bool((rows[:, 1:] <= rows[:, :-1]).all())
    distinct = all(len(set(rank)) == len(rank) for rank in ranks)
    if chance < -math.log(_CHANCE) or not down or not distinct:
        return None
    both = zip(ranks, rows.double().tolist(), strict=True)
    return [dict(zip(*pair, strict=True)) for pair in both]


def weigh(
    mine: Tensor, reference: Tensor, numbers: Numbers, limits: Limits, precision: Precision
) -> Weighed | None:
    """Return the worst misplaced id; None if there is none, or a number is missing."""
    width = reference.numel() // len(numbers.reference)
    weighed = []
    rows = zip(_ranks(mine, width), _ranks(reference, width), numbers.reference, strict=True)
    for row, (own, known, truly) in enumerate(rows):
        baseline = [run[row] for run in numbers.baseline]
        for chosen, meant in zip(own, known, strict=True):
            if chosen == meant:
                continue
            if chosen not in truly and not numbers.whole:
                return None
            fits = chosen in truly and own.count(chosen) == 1
            margin = abs(truly[meant] - truly[chosen]) if fits else math.inf
            noise = _noise(chosen, meant, truly, baseline, precision) if fits else 1.0
            weighed.append(Weighed(chosen, meant, margin, noise, margin <= limits.margin * noise))
    return max(weighed, key=lambda one: one.margin / one.noise, default=None)


def _noise(
    chosen: int, meant: int, reference: _Row, baseline: Sequence[_Row], precision: Precision
) -> float:
    """Return the baseline runs' scatter of the pair's difference, at least one rounding."""
    gap = reference[meant] - reference[chosen]
    both = [run for run in baseline if chosen in run and meant in run]
    squares = [(run[meant] - run[chosen] - gap) ** 2 for run in both]
    shown = math.sqrt(sum(squares) / len(squares)) if squares else 0.0
    largest = torch.tensor(max(abs(reference[meant]), abs(reference[chosen])), dtype=torch.float64)
    return max(shown, float(metrics.ulp(largest, precision)))
