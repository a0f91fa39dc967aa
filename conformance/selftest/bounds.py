"""Confidence intervals of counted rates: Clopper and Pearson 1934."""

from __future__ import annotations

import math


def clopper_pearson(count: int, total: int, confidence: float = 0.95) -> tuple[float, float]:
    """Return the exact interval of a rate, given `count` of `total` trials.

    Each side takes half of the error probability, unless the count is 0 or `total`: then one side
    cannot be missed, and the other takes all of it. So 0 of n is bounded by 1 − 0.05^(1/n).
    """
    if not 0 <= count <= total or not total:
        raise ValueError(f"{count} of {total} is no rate")
    remainder = 1 - confidence
    side = remainder if count in {0, total} else remainder / 2
    low = 0.0 if count == 0 else _solve(lambda p: _at_least(count, total, p), side)
    high = 1.0 if count == total else _solve(lambda p: -_at_most(count, total, p), -side)
    return low, high


def _solve(rising: object, target: float) -> float:
    """Return where a function that rises in [0, 1] takes the value `target`."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        if rising(middle) < target:  # type: ignore[operator]
            low = middle
        else:
            high = middle
    return (low + high) / 2


def _at_most(count: int, total: int, p: float) -> float:
    return math.fsum(_exactly(k, total, p) for k in range(count + 1))


def _at_least(count: int, total: int, p: float) -> float:
    return math.fsum(_exactly(k, total, p) for k in range(count, total + 1))


def _exactly(k: int, n: int, p: float) -> float:
    if p in {0.0, 1.0}:
        return float(k == n * p)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))
