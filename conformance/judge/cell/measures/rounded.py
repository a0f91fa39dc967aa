"""Values that a trace rounds itself (`.half()`, `.bfloat16()`), judged in float32.

Two correct computations differ by a millionth. If a rounding boundary lies between them, the
rounded numbers are neighbours, a thousandth apart in float16. Such an entry counts as correct. An
entry small relative to its row may be several roundings off, since the float32 error follows the
row's length: it stays and is judged with the row.

How many neighbours to expect follows from the float32 error: a difference δ crosses a boundary with
probability δ/u, where u is the spacing of neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics
from conformance.spec.records import Site

#: The dtypes a trace may round to, also if it casts back to float32 afterwards. The coarsest comes
#: first: float16 holds nearly all bfloat16 numbers.
_COARSE = (torch.bfloat16, torch.float16)
#: The float32 error of an average entry, relative to the root mean square of its row.
OFF = 1e-4
#: A count this many standard deviations above the expected one is still chance.
SIGMAS = 6
#: This many entries rule out nearly every tensor that was not rounded.
_FEW = 8


def kinds(reference: Mapping[Site, Tensor]) -> dict[Site, torch.dtype]:
    """Return the dtypes that the reference's values were rounded to, by site.

    Small integers fit any dtype: a name without any value that uses the last bit was not rounded.
    """
    found = {site: rounded_to(tensor) for site, tensor in reference.items()}
    kept = {site: kind for site, kind in found.items() if kind is not None}
    unproved = {
        name
        for name in {site.name for site in kept}
        if not _uses_last_bit([reference[s].to(kept[s]) for s in kept if s.name == name])
    }
    return {site: kind for site, kind in kept.items() if site.name not in unproved}


def _uses_last_bit(values: Sequence[Tensor]) -> bool:
    """Return whether any value uses its last bit, or there are too few values to tell."""
    count = 0
    for value in values:
        present = value[value != 0]
        count += present.numel()
        if bool((present.contiguous().view(torch.int16) & 1).any()):
            return True
    return count < _FEW


def settled(
    values: Mapping[Site, Tensor],
    reference: Mapping[Site, Tensor],
    kinds: Mapping[Site, torch.dtype],
) -> dict[Site, Tensor]:
    """Replace neighbours of the reference's entries by these, if both sides were rounded.

    No more may differ than chance allows, in any row and in all sites of a name together.
    """
    by_name: dict[str, dict[Site, _Neighbours]] = {}
    for site in kinds.keys() & values.keys():
        found = _neighbours(values[site], reference[site], kinds[site])
        if found is not None:
            by_name.setdefault(site.name, {})[site] = found
    near: dict[Site, Tensor] = {}
    for sites in by_name.values():
        each = torch.cat([found.chance.flatten() for found in sites.values()])
        # Always allow one: a single number has no expected count.
        if chance_of(sum(int(found.off.sum()) for found in sites.values()) - 1, each):
            near |= {
                site: torch.where(
                    found.off.reshape(reference[site].shape), reference[site], values[site]
                )
                for site, found in sites.items()
                if _by_chance(found)
            }
    return {**values, **near}


@dataclass(frozen=True, slots=True, eq=False)
class _Neighbours:
    """Which entries neighbour the reference's, and the probability of each: [rows, width]."""

    off: Tensor
    chance: Tensor


def _neighbours(value: Tensor, reference: Tensor, kind: torch.dtype) -> _Neighbours | None:
    """Compare two rounded tensors; None if the value was not rounded as the reference was."""
    if value.shape != reference.shape or value.dtype != reference.dtype or not value.numel():
        return None
    if rounded_to(value) is not kind or not bool(torch.isfinite(value).all()):
        return None
    mine, right = value.to(kind), reference.to(kind)
    off = (mine != right) & (torch.nextafter(right, mine) == mine)
    rows = metrics.rows(right)
    spacing = metrics.rows(torch.nextafter(right, torch.full_like(right, torch.inf))) - rows
    return _Neighbours(metrics.rows(off).bool(), chance(rows, spacing))


def _by_chance(found: _Neighbours) -> bool:
    """Return whether no row has more neighbours than chance allows."""
    return all(
        chance_of(int(off.sum()) - 1, each)
        for off, each in zip(found.off, found.chance, strict=True)
    )


def chance(rows: Tensor, spacing: Tensor | float) -> Tensor:
    """Return the probability that float32 rounds an entry to its neighbour: [rows, width]."""
    bulk = metrics.bulk(rows)
    # The error of an entry follows its row's length without massive entries.
    mean_square = (rows * bulk).square().sum(dim=-1, keepdim=True) / bulk.sum(-1, keepdim=True)
    off = OFF * mean_square.sqrt()
    massive = OFF * rows.abs() * ~bulk  # relative to their own size
    return (torch.maximum(off, massive) / spacing).clamp(max=1.0).expand_as(rows)


def chance_of(count: int, each: Tensor) -> bool:
    """Return whether `count` is within chance for events with these probabilities."""
    expected, variance = float(each.sum()), float((each * (1 - each)).sum())
    return count <= expected + SIGMAS * math.sqrt(variance)


def rounded_to(tensor: Tensor) -> torch.dtype | None:
    """Return the coarser dtype that holds all these numbers; None if there is none."""
    if not tensor.is_floating_point():
        return None
    flat = tensor.detach().reshape(-1)
    if tensor.dtype in _COARSE:
        return tensor.dtype if _carries(flat, tensor.dtype) else None
    return next((k for k in _COARSE if _carries(flat[:_FEW], k) and _carries(flat, k)), None)


def _carries(values: Tensor, kind: torch.dtype) -> bool:
    return torch.equal(values.to(kind).to(values.dtype), values)  # nan equals nothing
