"""Identify what a wrong value holds instead: another value of the same forward, by its numbers.

In float32 two computations of the same value agree to about 1e-6, and different values do not
agree. A match therefore identifies a value.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import torch
from torch import Tensor

from conformance.check.values.known_values import Known
from conformance.check.values.relations import SAME, near
from conformance.judge.measures import metrics


def identify(value: Tensor, known: list[Known], allowed: float = SAME) -> Known | None:
    """Return the known value whose rows, or their mean, this value equals, and which; else None."""
    if _positions(value, known):
        return Known("positions", "the positions of the tokens, as integers", value)
    if not bool(value.any()):
        return None  # zeros identify nothing
    forms = _forms(value)
    values = [one for one in known if one.rows.ndim == 2]
    for match, one, rows in product((_which, _mean), values, forms):
        if (found := match(rows, one.rows, allowed)) is not None:
            return replace(one, held=found)
    return None


def _forms(value: Tensor) -> list[Tensor]:
    """Return the value as rows of tokens, and those with the heads of a token joined."""
    bare = value[0] if value.ndim == 4 and value.shape[0] == 1 else value
    heads = [bare, bare.transpose(0, 1)] if value.ndim > 2 else []
    return [metrics.rows(value), *(one.double().flatten(1) for one in heads)]


def _positions(value: Tensor, known: list[Known]) -> bool:
    """Return whether a value is 0, 1, 2, … over the tokens of a step; a single integer is not."""
    if value.ndim != 1 or value.is_floating_point() or len(value) < 2:
        return False
    counts = (len(one.rows) for one in known if one.kind == "ids")
    return len(value) in counts and torch.equal(value.long(), torch.arange(len(value)))


def _which(rows: Tensor, known: Tensor, allowed: float) -> str | None:
    """Return in words which rows of `known` these are, "" for all of them; None for none."""
    count, total = len(rows), len(known)
    if count > total or rows.shape[1] != known.shape[1]:
        return None  # a cheap test first: there are thousands of known values
    known = known.double()
    for start in (total - count, *range(total - count)):
        if near(rows, known[start : start + count], allowed):
            if count == total:
                return ""
            if start == total - count:
                return "the last token" if count == 1 else f"the last {count} tokens"
            return f"token {start}" if count == 1 else f"tokens {start} to {start + count - 1}"
    return None


def _mean(rows: Tensor, known: Tensor, allowed: float) -> str | None:
    """Return a description if this row is the mean over all rows of `known`, else None."""
    if len(rows) != 1 or len(known) < 2 or rows.shape[1] != known.shape[1]:
        return None
    found = near(rows, known.double().mean(dim=0, keepdim=True), allowed)
    return "all tokens, averaged" if found else None
