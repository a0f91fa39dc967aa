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
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

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
    """What the truth's values were rounded to, of those that were. Small whole numbers fit any
    dtype: values that use no last bit of it, throughout all sites of a name, were not rounded.
    """
    found = {site: rounded_to(tensor) for site, tensor in truth.items()}
    kept = {site: kind for site, kind in found.items() if kind is not None}
    unproved = {
        name
        for name in {site.name for site in kept}
        if not _uses_last_bit([truth[s].to(kept[s]) for s in kept if s.name == name])
    }
    return {site: kind for site, kind in kept.items() if site.name not in unproved}


def _uses_last_bit(values: Sequence[Tensor]) -> bool:
    """Half of all rounded numbers have a last bit. Of few numbers nothing can be said."""
    count = 0
    for value in values:
        present = value[value != 0]
        count += present.numel()
        if bool((present.contiguous().view(torch.int16) & 1).any()):
            return True
    return count < _FEW


def settled(
    values: Mapping[Site, Tensor], truth: Mapping[Site, Tensor], kinds: Mapping[Site, torch.dtype]
) -> dict[Site, Tensor]:
    """The values with the truth's entries in the place of their neighbours, where both were rounded
    and no more entries differ than chance lets: in any row, and in all sites of a name together.
    """
    by_name: dict[str, dict[Site, _Neighbours]] = {}
    for site in kinds.keys() & values.keys():
        found = _neighbours(values[site], truth[site], kinds[site])
        if found is not None:
            by_name.setdefault(site.name, {})[site] = found
    near: dict[Site, Tensor] = {}
    for sites in by_name.values():
        each = torch.cat([found.chance.flatten() for found in sites.values()])
        # One is always let: of a single number nothing can be expected.
        if chance_of(sum(int(found.off.sum()) for found in sites.values()) - 1, each):
            near |= {
                site: torch.where(found.off.reshape(truth[site].shape), truth[site], values[site])
                for site, found in sites.items()
                if _by_chance(found)
            }
    return {**values, **near}


@dataclass(frozen=True, slots=True, eq=False)
class _Neighbours:
    """Which entries are the truth's neighbours, and the chance of each to be one: [rows, width]."""

    off: Tensor
    chance: Tensor


def _neighbours(value: Tensor, truth: Tensor, kind: torch.dtype) -> _Neighbours | None:
    """None where the value was not rounded as the truth was."""
    if value.shape != truth.shape or value.dtype != truth.dtype or not value.numel():
        return None
    if rounded_to(value) is not kind or not bool(torch.isfinite(value).all()):
        return None
    mine, right = value.to(kind), truth.to(kind)
    off = (mine != right) & (torch.nextafter(right, mine) == mine)
    rows = metrics.rows(right)
    spacing = metrics.rows(torch.nextafter(right, torch.full_like(right, torch.inf))) - rows
    return _Neighbours(metrics.rows(off).bool(), chance(rows, spacing))


def _by_chance(found: _Neighbours) -> bool:
    """Has no row more neighbours than chance lets?"""
    return all(
        chance_of(int(off.sum()) - 1, each)
        for off, each in zip(found.off, found.chance, strict=True)
    )


def chance(rows: Tensor, spacing: Tensor | float) -> Tensor:
    """The chance that float32 rounds an entry otherwise, where its neighbour is so far: [rows,
    width]. The error of an entry follows its row's length, of which massive entries are no part.
    """
    bulk = metrics.bulk(rows)
    mean_square = (rows * bulk).square().sum(dim=-1, keepdim=True) / bulk.sum(-1, keepdim=True)
    off = OFF * mean_square.sqrt()
    massive = OFF * rows.abs() * ~bulk  # as far off as it is large
    return (torch.maximum(off, massive) / spacing).clamp(max=1.0).expand_as(rows)


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
