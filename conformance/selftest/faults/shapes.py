"""What several faults do to rows of numbers."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.direction import direction

#: As the judge: dimensions beyond so many times a token's median size are massive.
_MASSIVE = 20.0


def bulk(rows: Tensor) -> Tensor:
    """Which dimensions of [T, D] are not massive."""
    size = rows.float().abs()
    return size <= _MASSIVE * size.median(dim=-1, keepdim=True).values


def noisy(rows: Tensor, share: float, seed: int = 3) -> Tensor:
    """Every row with a random error of this share of its bulk's length."""
    mask = bulk(rows)
    values = rows.float() * mask
    error = torch.stack(
        [direction(rows.shape[-1], 1.0, seed + token).to(rows.device) for token in range(len(rows))]
    )
    error = error.float() * mask
    size = values.norm(dim=-1, keepdim=True) / error.norm(dim=-1, keepdim=True)
    changed: Tensor = rows.float() + share * size * error
    return changed.to(rows.dtype)


def float32(value: Tensor) -> Tensor:
    return value.to(torch.float32)
