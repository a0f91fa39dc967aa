"""How one value follows from another: the same, a multiple of it, capped."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from conformance.check.values.known_values import near

#: Numbers of which there are at least so many before a factor or a cap is fitted to them: a free
#: parameter fits one number always, and a few too often.
FITTED = 16


def probabilities(value: Tensor) -> bool:
    """Do its rows sum to one, of a square: the weights of each token on those before it?"""
    if value.ndim < 3 or value.shape[-1] != value.shape[-2] or not value.is_floating_point():
        return False
    sums = value.double().sum(dim=-1)
    return bool((value >= 0).all() and (sums - 1).abs().max() < 1e-3)


def same(mine: Tensor, other: Tensor) -> bool:
    """Are all rows equal but for rounding in float32?"""
    if not mine.is_floating_point():
        return False
    width = mine.shape[-1] if mine.ndim else 1
    return near(mine.double().reshape(-1, width), other.double().reshape(-1, width))


def alike(mine: Tensor, other: Tensor) -> bool:
    """Are they of one shape, and equal: numbers that are no integers but for rounding?"""
    if mine.shape != other.shape:
        return False
    return same(mine, other) if mine.is_floating_point() else bool((mine == other).all())


def distance(mine: Tensor, truth: Tensor) -> float | None:
    """How far a value is off, as a share of the size of what it should be: both as Euclidean norms
    over all entries that are numbers on both sides. None for another shape or other than floats.
    """
    if mine.shape != truth.shape or not mine.is_floating_point() or not mine.numel():
        return None
    ours, theirs = mine.double(), truth.double()
    numbers = ours.isfinite() & theirs.isfinite()
    size = theirs[numbers].norm()
    return float((ours - theirs)[numbers].norm() / size) if size else None


def multiple(mine: Tensor, truth: Tensor) -> float | None:
    """The factor between two values, None where there is none."""
    if not _fittable(mine, truth):
        return None
    ours, theirs = mine.double(), truth.double()
    gain = float((ours * theirs).sum() / theirs.square().sum().clamp_min(1e-30))
    if abs(gain) < 1e-6:
        return None
    return gain if (ours - gain * theirs).norm() <= 1e-3 * ours.norm() else None


def cap(mine: Tensor, truth: Tensor) -> float | None:
    """The c for which one is c·tanh(other / c), None for none."""
    if not _fittable(mine, truth):
        return None
    ours, theirs = mine.double().flatten(), truth.double().flatten()
    largest = int(theirs.abs().argmax())
    most, least = float(theirs[largest].abs()), float(ours[largest].abs())
    low, high = least, 1e3 * (most + 1e-30)
    if not 0 < least < 0.999 * most:
        return None
    for _ in range(60):
        cap = (low + high) / 2
        low, high = (cap, high) if cap * math.tanh(most / cap) < least else (low, cap)
    return low if (ours - low * torch.tanh(theirs / low)).norm() <= 1e-3 * ours.norm() else None


def _fittable(mine: Tensor, truth: Tensor) -> bool:
    return mine.shape == truth.shape and mine.is_floating_point() and mine.numel() >= FITTED
