"""Changes to rows of numbers [tokens, width] that faults at several hook points share."""

from __future__ import annotations

import torch
from torch import Tensor

from conformance.commands.selftest.fault import Moment
from conformance.spec.direction import direction

#: As in the judge: dimensions above this multiple of a token's median size are massive.
_MASSIVE = 20.0


def zeros(rows: Tensor, now: Moment) -> Tensor:
    return torch.zeros_like(rows)


def scaled(rows: Tensor, now: Moment) -> Tensor:
    return rows * now.dose


def shifted(rows: Tensor, now: Moment) -> Tensor:
    """Give each token the row of the one `dose` tokens before."""
    return rows.roll(int(now.dose), dims=0)


def reversed_rows(rows: Tensor, now: Moment) -> Tensor:
    return rows.flip(0)


def halves_swapped(rows: Tensor, now: Moment) -> Tensor:
    return rows.roll(rows.shape[-1] // 2, dims=-1)


def blurred(rows: Tensor, now: Moment) -> Tensor:
    return noisy(rows, now.dose)


def in_float32(rows: Tensor, now: Moment) -> Tensor:
    return rows.to(torch.float32)


def last_bit(rows: Tensor, now: Moment) -> Tensor:
    flip_bit(rows)
    return rows


def flip_bit(value: Tensor) -> None:
    """Flip the last bit of the first number, in place: far below the noise."""
    value.view(torch.int16).view(-1)[0] ^= 1  # the lower half of a wider number comes first


def bulk(rows: Tensor) -> Tensor:
    """Return which dimensions of [T, D] are not massive."""
    size = rows.float().abs()
    return size <= _MASSIVE * size.median(dim=-1, keepdim=True).values


def noisy(rows: Tensor, share: float) -> Tensor:
    """Add to every row a random error of this share of its length without massive dimensions."""
    mask = bulk(rows)
    values = rows.float() * mask
    error = torch.stack(
        [direction(rows.shape[-1], 1.0, 3 + token).to(rows.device) for token in range(len(rows))]
    )
    error = error.float() * mask
    size = values.norm(dim=-1, keepdim=True) / error.norm(dim=-1, keepdim=True)
    changed: Tensor = rows.float() + share * size * error
    return changed.to(rows.dtype)
