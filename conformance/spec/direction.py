"""The fixed vector that interventions add: the same numbers on every engine."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def direction(width: int, norm: float, seed: int) -> Tensor:
    """Return a random direction, float32 [width], exactly representable in bf16.

    Its length is `norm` rounded to a power of two, so that a last-bit difference in the measured
    norm cannot change the vector.
    """
    generator = torch.Generator().manual_seed(seed)
    vector = torch.randn(width, generator=generator)
    length = 2.0 ** round(math.log2(norm)) if norm > 0 else 1.0
    scaled: Tensor = vector / vector.norm() * length
    return scaled.bfloat16().float()
