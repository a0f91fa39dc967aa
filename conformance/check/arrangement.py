"""The right values, arranged otherwise: in another order, or without a batch's padding (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from conformance.check import relations
from conformance.check.compare import shown
from conformance.records import Site

#: Entries of a list up to which every pair is compared.
_MOST = 200


def reordered(name: str, values: Mapping[Site, Tensor], truth: Mapping[Site, Tensor]) -> str:
    """Which entry of this name holds which other's value, where each entry's value is there under
    another entry; "" where the values themselves differ, or none stands elsewhere.
    """
    sites = [site for site in truth if site.name == name and site in values]
    if len(sites) < 2 or len(sites) > _MOST:
        return ""
    free = list(sites)
    moved = []
    for site in sites:
        here = next(
            (other for other in _nearest(site, free) if _same(values[site], truth[other])), None
        )
        if here is None:
            return ""
        free.remove(here)
        if here != site:
            moved.append(f"`{shown(site)}` holds `{shown(here)}`")
    return ", ".join(moved[:2]) + (" and so on" if len(moved) > 2 else "")


def _nearest(site: Site, sites: list[Site]) -> list[Site]:
    """An entry's own value first: alike ones are no reason to call it moved."""
    return sorted(sites, key=lambda other: other != site)


def _same(value: Tensor, other: Tensor) -> bool:
    if value.shape != other.shape:
        return False
    if not value.is_floating_point():
        return bool((value == other).all())
    return relations.same(value, other)


def padding(value: Tensor, truth: Tensor) -> int:
    """How many rows of padding transformers' value [.., tokens, width] has in front of this one,
    whose rows are the others; 0 where that is not the difference.
    """
    if not (value.ndim and truth.ndim) or value.shape[-1] != truth.shape[-1]:
        return 0
    rows, others = (one.reshape(-1, one.shape[-1]) for one in (value, truth))
    more = len(others) - len(rows)
    if more <= 0 or not len(rows):
        return 0
    return more if _same(rows, others[more:]) else 0
