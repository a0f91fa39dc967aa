"""The probability that a wrong way of sampling is detected, computed from the logits.

Many draws from the same logits are independent. Each adds to the evidence for another way of
sampling an amount that depends on the drawn id; convolution gives the distribution of the sum.
Amounts are rounded down to a grid and only one other way counts, so the result is a lower bound.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance.judge.measures.draws import RATE, Draws, at_most, ways

#: The grid, in units of the natural logarithm.
_STEP = 0.01
#: A draw that lowers the evidence by more than this is dropped: its sum cannot reach the limit.
_LEAST = -20.0


def detected(logits: Tensor, asked: Draws, used: Tensor, count: int) -> float:
    """Return a lower bound on the probability that draws from `used` fail the test of `asked`."""
    right = at_most(logits, asked)
    inside = float(used[right > 0].sum())
    if inside < 1 - 1e-12 and inside**count < 1e-4:
        return 1 - inside**count  # an id outside is proof by itself
    tried = ways(logits, asked)
    needed = math.log(len(tried) / RATE)
    shown = max(_reached(used, right, other, count, needed) for other in tried.values())
    return 1 - inside**count * (1 - shown)


def _reached(used: Tensor, right: Tensor, other: Tensor, count: int, needed: float) -> float:
    """Return the probability that one other way's evidence reaches `needed`, given ids inside."""
    inside = right > 0
    chances = used[inside] / used[inside].sum()
    adds = other[inside].log() - right[inside].log()
    counted = adds > _LEAST
    if float((chances * adds.clamp_min(_LEAST)).sum()) <= 0:
        return 0.0  # this way does not detect it
    places = torch.floor(adds[counted] / _STEP).long()
    first = int(places.min())
    mass = torch.zeros(int(places.max()) - first + 1, dtype=torch.float64)
    mass.index_add_(0, places - first, chances[counted])
    length = count * (len(mass) - 1) + 1
    padded = 2 ** math.ceil(math.log2(length))
    total = torch.fft.irfft(torch.fft.rfft(mass, n=padded) ** count, n=padded)[:length]
    beyond = max(0, math.ceil(needed / _STEP) - count * first)
    return float(total[beyond:].sum().clamp(0, 1))
