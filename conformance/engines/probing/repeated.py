"""Does an engine give the same bits again? Measured, where what computes does not promise it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor, equal

from conformance.engines.structure import tensors_in


def repeats(outputs: Callable[[], Any]) -> bool:
    """Are the tensors that `outputs` computes the same, to the last bit, when it is called again?

    False where there are none. Two batches of other sizes may still differ: on a GPU a kernel is
    chosen by how many rows there are.
    """

    def tensors() -> list[Tensor]:
        return [tensor.clone() for tensor in tensors_in(outputs())]

    return same_bits(tensors(), tensors())


#: Between two computations that need not have the same bits; an engine that a block has changed
#: is further off.
_NOISE = 0.05


def is_unchanged(now: Any, before: Any, *, exact: bool) -> bool:
    """Return whether two computations of the same outputs agree: to the bit where `exact`."""
    left, right = tensors_in(now), tensors_in(before)
    if exact or [one.shape for one in left] != [one.shape for one in right]:
        return same_bits(left, right)
    pairs = ((one.float(), other.float()) for one, other in zip(left, right, strict=True))
    return all(bool((one - other).norm() <= _NOISE * other.norm()) for one, other in pairs)


def same_bits(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Are there tensors, and those of both sides the same to the last bit?"""
    return bool(left) and len(left) == len(right) and all(map(equal, left, right))
