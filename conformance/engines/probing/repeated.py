"""Measure whether an engine whose backend does not promise it is bitwise reproducible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, equal

from conformance.engines.structure import tensors_in


def repeats(outputs: Callable[[], Any]) -> bool:
    """Return whether two calls of `outputs` compute bitwise the same tensors.

    False if there are no tensors. Batches of different sizes may still differ: on a GPU the kernel
    depends on the number of rows.
    """
    first = [tensor.clone() for tensor in tensors_in(outputs())]
    return same_bits(first, tensors_in(outputs()))


#: The largest relative distance between two computations that need not be bitwise the same; an
#: engine that a block has changed is further off.
_NOISE = 0.05


def is_unchanged(now: Any, before: Any, *, exact: bool) -> bool:
    """Return whether two computations of the same outputs agree, bitwise if `exact`."""
    left, right = tensors_in(now), tensors_in(before)
    if exact or [one.shape for one in left] != [one.shape for one in right]:
        return same_bits(left, right)
    pairs = ((one.float(), other.float()) for one, other in zip(left, right, strict=True))
    return all(bool((one - other).norm() <= _NOISE * other.norm()) for one, other in pairs)


def same_bits(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Return whether both sides hold the same tensors, bitwise, and at least one."""
    return bool(left) and len(left) == len(right) and all(map(equal, left, right))
