"""Relations between two values: equality, distance, and scale factor."""

from __future__ import annotations

from torch import Tensor

from conformance.check.values.known_values import near

#: The fewest numbers to which a factor is fitted: a free parameter always fits one number, and too
#: often a few.
FITTED = 16


def same(mine: Tensor, other: Tensor) -> bool:
    """Return whether all rows are equal except for rounding in float32."""
    if not mine.is_floating_point():
        return False
    width = mine.shape[-1] if mine.ndim else 1
    return near(mine.double().reshape(-1, width), other.double().reshape(-1, width))


def alike(mine: Tensor, other: Tensor) -> bool:
    """Return whether two values have the same shape and are equal, floats except for rounding."""
    if mine.shape != other.shape:
        return False
    return same(mine, other) if mine.is_floating_point() else bool((mine == other).all())


def distance(mine: Tensor, truth: Tensor) -> float | None:
    """Return the relative distance to `truth` in the Euclidean norm, over the entries that are
    finite in both. None for different shapes, or values that are not floats.
    """
    if mine.shape != truth.shape or not mine.is_floating_point() or not mine.numel():
        return None
    ours, theirs = mine.double(), truth.double()
    numbers = ours.isfinite() & theirs.isfinite()
    size = theirs[numbers].norm()
    return float((ours - theirs)[numbers].norm() / size) if size else None


def multiple(mine: Tensor, truth: Tensor) -> float | None:
    """Return the factor by which `mine` is a multiple of `truth`, None if it is not."""
    if mine.shape != truth.shape or not mine.is_floating_point() or mine.numel() < FITTED:
        return None
    ours, theirs = mine.double(), truth.double()
    gain = float((ours * theirs).sum() / theirs.square().sum().clamp_min(1e-30))
    if abs(gain) < 1e-6:
        return None
    return gain if (ours - gain * theirs).norm() <= 1e-3 * ours.norm() else None
