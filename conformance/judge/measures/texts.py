"""Observations that are texts: error messages stored as uint8 bytes."""

from __future__ import annotations

import torch
from torch import Tensor


def is_text(value: Tensor) -> bool:
    return value.dtype is torch.uint8 and value.ndim == 1


def differ(candidate: Tensor, reference: Tensor) -> str:
    """Return how a text differs from the reference's, "" if it does not."""
    if torch.equal(candidate, reference):
        return ""
    return f"says {_decoded(candidate)!r} instead of {_decoded(reference)!r}"


def _decoded(value: Tensor) -> str:
    return bytes(value.tolist()).decode(errors="replace")
