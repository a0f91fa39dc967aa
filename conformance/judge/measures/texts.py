"""Texts among the observations: what an error said, as the bytes of its words."""

from __future__ import annotations

import torch
from torch import Tensor


def is_text(value: Tensor) -> bool:
    return value.dtype is torch.uint8 and value.ndim == 1


def differ(mine: Tensor, truth: Tensor) -> str:
    """How a text differs from the one that is right, in words; "" when it does not."""
    if torch.equal(mine, truth):
        return ""
    return f"says {_read(mine)!r} instead of {_read(truth)!r}"


def _read(value: Tensor) -> str:
    return bytes(value.tolist()).decode(errors="replace")
