"""Relations between two values: equality, distance, and scale factor."""

from __future__ import annotations

from torch import Tensor

from conformance.judge.cell.measures.metrics import rows

#: The largest relative distance between equal values in float32.
SAME = 1e-3

#: The fewest numbers to which a factor is fitted: a free parameter always fits one number, and too
#: often a few.
FITTED = 16


def is_near(mine: Tensor, known: Tensor, allowed: float = SAME) -> bool:
    """Return whether every row is within `allowed` of the known one, relative to its norm."""
    size = known.norm(dim=-1).clamp_min(1e-12)
    return bool(((mine - known).norm(dim=-1) <= allowed * size).all())


def is_alike(mine: Tensor, other: Tensor) -> bool:
    """Return whether two values have the same shape and are equal, floats except for rounding."""
    if mine.shape != other.shape or not mine.is_floating_point():
        return mine.shape == other.shape and bool((mine == other).all())
    return is_near(rows(mine), rows(other))


def distance(mine: Tensor, reference: Tensor) -> float | None:
    """Return the relative distance to `reference` in the Euclidean norm, over the entries that are
    finite in both. None for different shapes, or values that are not floats.
    """
    if mine.shape != reference.shape or not mine.is_floating_point() or not mine.numel():
        return None
    ours, theirs = mine.double(), reference.double()
    numbers = ours.isfinite() & theirs.isfinite()
    size = theirs[numbers].norm()
    return float((ours - theirs)[numbers].norm() / size) if size else None


def multiple(mine: Tensor, reference: Tensor, allowed: float = SAME) -> float | None:
    """Return the factor from `reference` to `mine`, None if it leaves more than `allowed` of it."""
    if mine.shape != reference.shape or not mine.is_floating_point() or mine.numel() < FITTED:
        return None
    ours, theirs = mine.double(), reference.double()
    gain = float((ours * theirs).sum() / theirs.square().sum().clamp_min(1e-30))
    if abs(gain) < 1e-6:
        return None
    return gain if (ours - gain * theirs).norm() <= allowed * ours.norm() else None
