"""The right values, arranged otherwise: in another order, or without a batch's padding (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import Tensor

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.values import relations
from conformance.check.values.naming import Names
from conformance.records import Site

#: Entries of a list up to which every pair is compared.
_MOST = 200


def explain(
    blank: Finding,
    site: Site,
    values: Mapping[Site, Tensor],
    truth: Mapping[Site, Tensor],
    edit: Edit | None,
    lengths: Sequence[int] = (),
    names: Names | None = None,
) -> Finding | None:
    """That this value is right and stands elsewhere, or has no padding; None where it is neither.
    `edit` names the line that reads it, `lengths` are the prompts' on transformers in tokens.
    """
    moved = reordered(site.name, values, truth, names)
    if moved:
        called = (names or Names()).whole(site)
        words = (
            f"`{called}` has the right values in another order: {moved}. On vLLM the blocks of "
            "several prompts run side by side: keep what each saves by a key (a dict), or in a "
            "list of its own"
        )
        return replace(blank, kind="order", words=words, edit=edit)
    prompt = member(values[site], truth[site], lengths)
    if prompt is not None:
        words = (
            f"`{blank.name}` is prompt {prompt}'s alone; on transformers it is all "
            f"{len(truth[site])} prompts', {list(truth[site].shape)}. Return each prompt's value "
            "under a name of its own on both sides"
        )
        return replace(blank, kind="batch", words=words)
    padded = padding(values[site], truth[site], lengths)
    if not padded:
        return None
    rows = values[site].shape[-2]
    words = (
        f"`{blank.name}` has {rows} rows, and on transformers {rows + padded}, of which the first "
        f"{padded} are the padding of a batch; the others are the same. Return the prompt's own "
        f"rows there: `[:, -{rows}:]`"
    )
    return replace(blank, kind="padding", words=words)


def reordered(
    name: str,
    values: Mapping[Site, Tensor],
    truth: Mapping[Site, Tensor],
    names: Names | None = None,
) -> str:
    """Which entry of this name holds which other's value, where each entry's value is there under
    another entry; "" where the values themselves differ, or none stands elsewhere.
    """
    sites = [site for site in truth if site.name == name and site in values]
    if len(sites) < 2 or len(sites) > _MOST:
        return ""
    free, called = list(sites), (names or Names()).of
    moved = []
    for site in sites:
        here = next(
            (other for other in _nearest(site, free) if _same(values[site], truth[other])), None
        )
        if here is None:
            return ""
        free.remove(here)
        if here != site:
            moved.append(f"`{called(site)}` holds `{called(here)}`")
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


def padding(value: Tensor, truth: Tensor, lengths: Sequence[int]) -> int:
    """How many rows of padding transformers' value [.., tokens, width] has in front of this one,
    whose rows are the others; 0 where that is not the difference. Prompts of these `lengths` in a
    batch are padded to the longest of them, and a prompt alone is not.
    """
    if min(value.ndim, truth.ndim) < 2 or value.shape[-1] != truth.shape[-1]:
        return 0
    rows, others = (one.reshape(-1, *one.shape[-2:]) for one in (value, truth))
    more = others.shape[1] - rows.shape[1]
    if (len(rows), len(others)) != (1, 1) or more <= 0 or not rows.shape[1]:
        return 0
    if not {rows.shape[1], others.shape[1]} <= set(lengths):
        return 0
    return more if _same(rows[0], others[0, more:]) else 0


def member(value: Tensor, truth: Tensor, lengths: Sequence[int]) -> int | None:
    """Which prompt's value of transformers' batch [prompts, ..] this one is, None for none: there
    are as many prompts as `lengths`, or some of them in a trace of their own.
    """
    if truth.ndim < 2 or not 2 <= len(truth) <= len(lengths) or value.numel() != truth[0].numel():
        return None
    shape = truth[0].shape
    return next((n for n, own in enumerate(truth) if _same(value.reshape(shape), own)), None)
