"""Changes to rows of numbers that several faults share."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.direction import direction

#: As in the judge: dimensions above this multiple of a token's median size are massive.
_MASSIVE = 20.0


def bulk(rows: Tensor) -> Tensor:
    """Return which dimensions of [T, D] are not massive."""
    size = rows.float().abs()
    return size <= _MASSIVE * size.median(dim=-1, keepdim=True).values


def noisy(rows: Tensor, share: float, seed: int = 3) -> Tensor:
    """Add to every row a random error of this share of its length without massive dimensions."""
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
