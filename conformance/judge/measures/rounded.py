"""Values that a trace rounds by itself (`.half()`, `.bfloat16()`), judged in float32.

Two right computations differ by a millionth, and where a rounding lies between them the rounded
numbers are neighbours: a thousandth apart in float16. Of such an entry it is only known that it is
right. An entry that is small beside its row may be several roundings off, as float32 is by the
length of the row: it stays, and is judged with it.

How many neighbours there may be follows from how far float32 may be off: a difference δ has a
rounding in it with the chance δ/u, u being the distance of neighbours there.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.judge.measures import metrics
from conformance.records import Site

#: What a trace rounds to; its own dtype, or what is left in float32 after a cast there and back.
#: The coarsest comes first: float16 holds nearly all numbers of bfloat16.
_COARSE = (torch.bfloat16, torch.float16)
#: How far float32 may be off of a row's root mean square, on the average of its entries.
OFF = 1e-4
#: So many standard deviations more than expected are still chance.
SIGMAS = 6
#: So many entries tell nearly every other tensor from one that was rounded.
_FEW = 8


def kinds(truth: Mapping[Site, Tensor]) -> dict[Site, torch.dtype]:
    """What the truth's values were rounded to, of those that were."""
    found = {site: rounded_to(tensor) for site, tensor in truth.items()}
    return {site: kind for site, kind in found.items() if kind is not None}


def settled(
    values: Mapping[Site, Tensor], truth: Mapping[Site, Tensor], kinds: Mapping[Site, torch.dtype]
) -> dict[Site, Tensor]:
    """The values with the truth's entries in the place of their neighbours, where both were rounded
    and no more entries differ than chance lets.
    """
    near = {
        site: _settled(values[site], truth[site], kinds[site])
        for site in kinds.keys() & values.keys()
    }
    return {**values, **near}


def _settled(value: Tensor, truth: Tensor, kind: torch.dtype) -> Tensor:
    if value.shape != truth.shape or value.dtype != truth.dtype:
        return value
    if rounded_to(value) is not kind or not bool(torch.isfinite(value).all()):
        return value
    mine, right = value.to(kind), truth.to(kind)
    off = (mine != right) & (torch.nextafter(right, mine) == mine)
    if not bool(off.any()):
        return value
    rows = metrics.rows(right)
    spacing = metrics.rows(torch.nextafter(right, torch.full_like(right, torch.inf))) - rows
    # One is always let: of a single number nothing can be expected.
    by_chance = chance_of(int(off.sum()) - 1, chance(rows, spacing))
    return torch.where(off, truth, value) if by_chance else value


def chance(rows: Tensor, spacing: Tensor | float) -> Tensor:
    """That float32 rounds an entry otherwise, where its neighbour is so far: [rows, width]."""
    mean_square = rows.square().mean(dim=-1, keepdim=True)
    return (OFF * mean_square.sqrt() / spacing).clamp(max=1.0).expand_as(rows)


def chance_of(count: int, each: Tensor) -> bool:
    """Are so many no more than chance lets, of entries of which each has its own?"""
    expected, variance = float(each.sum()), float((each * (1 - each)).sum())
    return count <= expected + SIGMAS * math.sqrt(variance)


def rounded_to(tensor: Tensor) -> torch.dtype | None:
    """The coarser dtype whose numbers these are, all of them; None for none."""
    if not tensor.is_floating_point():
        return None
    flat = tensor.detach().reshape(-1)
    if tensor.dtype in _COARSE:
        return tensor.dtype if _carries(flat, tensor.dtype) else None
    return next((k for k in _COARSE if _carries(flat[:_FEW], k) and _carries(flat, k)), None)


def _carries(values: Tensor, kind: torch.dtype) -> bool:
    return torch.equal(values.to(kind).to(values.dtype), values)  # nan is equal to nothing
