"""Ids of the largest numbers, by the numbers that stand beside them: which are in another order, is
each as large as the one whose place it has, to honest noise? (pure)

Like a greedy id each is weighed by the truth's numbers and by the honest runs' scatter on the pair.
The numbers are found, not named: a tensor whose largest these ids are in the truth and in every
honest run, or the sorted numbers that `topk` gives with them.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from conformance.judge.measures import metrics
from conformance.records import Limits, Precision

#: Numbers that would be in the order of some ids by chance as often as this are not theirs.
_CHANCE = 1 / 64

#: An id → its number in a row.
_Row = dict[int, float]


@dataclass(frozen=True)
class Numbers:
    """The numbers of each row's ids in the truth, and in each of the honest runs; of all ids that
    there are if they are the `whole`.
    """

    truth: list[_Row]
    members: list[list[_Row]]
    whole: bool


@dataclass(frozen=True)
class Weighed:
    """Of all ids that have another one's place that which is furthest from it: `chosen` stands
    where `meant` should, and is apart from it by `margin`; `noise` is what honest runs show on the
    pair.
    """

    chosen: int
    meant: int
    margin: float
    noise: float
    benign: bool


def numbers_of(mine: Tensor, ids: Sequence[Tensor], runs: Sequence[Tensor]) -> Numbers | None:
    """What a tensor says of ids beside it; None where they are not the ids of its largest. `ids`
    are those of the truth and of the honest runs, `runs` the tensor in the same runs, and `mine`
    the ids to be weighed.
    """
    wanted = {int(one) for each in (mine, *ids) for one in each.flatten().tolist()}
    for find, whole in ((partial(_largest, wanted=wanted), True), (_sorted, False)):
        rows = [find(*pair) for pair in zip(ids, runs, strict=True)]
        found = [one for one in rows if one is not None]
        if len(found) == len(rows):
            return Numbers(found[0], found[1:], whole)
    return None


def _ranks(ids: Tensor, width: int) -> list[list[int]]:
    """The ids as rows, each a ranking of so many."""
    return [list(map(int, row)) for row in ids.reshape(-1, width).tolist()]


def _bare(shape: Sequence[int]) -> list[int]:
    """A shape without a leading axis of one."""
    return list(shape[1:]) if shape and shape[0] == 1 else list(shape)


def _largest(ids: Tensor, numbers: Tensor, wanted: Collection[int]) -> list[_Row] | None:
    """Where these are the ids of the largest numbers of each row, in order."""
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
    """Where these are as many numbers as ids, and each row of them goes down."""
    if ids.shape != numbers.shape or not ids.ndim or not ids.numel():
        return None
    rows, ranks = numbers.reshape(-1, ids.shape[-1]), _ranks(ids, ids.shape[-1])
    chance = len(rows) * math.lgamma(ids.shape[-1] + 1)
    down = bool((rows[:, 1:] <= rows[:, :-1]).all())
    if chance < -math.log(_CHANCE) or not down or not all(map(_distinct, ranks)):
        return None
    both = zip(ranks, rows.double().tolist(), strict=True)
    return [dict(zip(*pair, strict=True)) for pair in both]


def _distinct(rank: list[int]) -> bool:
    return len(set(rank)) == len(rank)


def weigh(
    mine: Tensor, truth: Tensor, numbers: Numbers, limits: Limits, precision: Precision
) -> Weighed | None:
    """The worst of the ids that have another one's place; None where there is none, or the number
    of one is not known.
    """
    width = truth.numel() // len(numbers.truth)
    weighed = []
    for row, (own, known) in enumerate(zip(_ranks(mine, width), _ranks(truth, width), strict=True)):
        truly = numbers.truth[row]
        honest = [member[row] for member in numbers.members]
        for chosen, meant in zip(own, known, strict=True):
            if chosen == meant:
                continue
            if chosen not in truly and not numbers.whole:
                return None
            fits = chosen in truly and own.count(chosen) == 1
            margin = abs(truly[meant] - truly[chosen]) if fits else math.inf
            noise = _noise(chosen, meant, truly, honest, precision) if fits else 1.0
            weighed.append(Weighed(chosen, meant, margin, noise, margin <= limits.margin * noise))
    return max(weighed, key=lambda one: one.margin / one.noise, default=None)


def _noise(
    chosen: int, meant: int, truth: _Row, honest: Sequence[_Row], precision: Precision
) -> float:
    """How far apart from the truth honest runs have two numbers' difference, and at least one
    rounding.
    """
    gap = truth[meant] - truth[chosen]
    both = [run for run in honest if chosen in run and meant in run]
    squares = [(run[meant] - run[chosen] - gap) ** 2 for run in both]
    shown = math.sqrt(sum(squares) / len(squares)) if squares else 0.0
    largest = torch.tensor(max(abs(truth[meant]), abs(truth[chosen])), dtype=torch.float64)
    return max(shown, float(metrics.ulp(largest, precision)))
