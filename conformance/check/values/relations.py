"""How one value follows from another: the same, or a multiple of it."""

from __future__ import annotations

from torch import Tensor

from conformance.check.values.known_values import near

#: Numbers of which there are at least so many before a factor is fitted to them: a free
#: parameter fits one number always, and a few too often.
FITTED = 16


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
    if mine.shape != truth.shape or not mine.is_floating_point() or mine.numel() < FITTED:
        return None
    ours, theirs = mine.double(), truth.double()
    gain = float((ours * theirs).sum() / theirs.square().sum().clamp_min(1e-30))
    if abs(gain) < 1e-6:
        return None
    return gain if (ours - gain * theirs).norm() <= 1e-3 * ours.norm() else None
