"""What a wrong value holds instead: which other value of the same forward it is, by its numbers.

In float32 two ways of computing the same agree to a millionth and different values not at all,
so a match is an identification.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from conformance.check.values.known_values import SAME, Known, near


@dataclass(frozen=True)
class Held:
    """What a value holds: `rows` say which of the known value's, "" for all."""

    kind: str
    words: str
    layer: int | None
    rows: str = ""
    sequence: int = 0

    def what(self) -> str:
        """In words: which value of which tokens."""
        return f"{self.words}{f' of {self.rows}' if self.rows else ''}"


def identify(value: Tensor, known: list[Known], allowed: float = SAME) -> Held | None:
    """Which known value this is, and which of its rows, or the mean over them; None for none."""
    if _positions(value, known):
        return Held("positions", "the positions of the tokens, as integers", None)
    if not bool(value.any()):
        return None  # zeros are whatever was set to zero
    forms = [form.double() for form in _forms(value)]
    values = [one for one in known if one.rows.ndim == 2]
    for match, one, rows in product((_which, _mean), values, forms):
        if (found := match(rows, one.rows, allowed)) is not None:
            return Held(one.kind, one.words, one.layer, found, one.sequence)
    return None


def _forms(value: Tensor) -> list[Tensor]:
    """The value as rows of tokens: with the heads of a token side by side, where it has some."""
    if value.ndim < 2:
        return [value.reshape(1, -1)]
    bare = value[0] if value.ndim == 4 and value.shape[0] == 1 else value
    heads = [bare.flatten(1), bare.transpose(0, 1).flatten(1)] if value.ndim > 2 else []
    return [value.reshape(-1, value.shape[-1]), *heads]


def _positions(value: Tensor, known: list[Known]) -> bool:
    """Does it count the tokens of a step? A few integers in a row may be any."""
    if value.ndim != 1 or value.is_floating_point() or len(value) < 2:
        return False
    counts = (len(one.rows) for one in known if one.kind == "ids")
    return len(value) in counts and torch.equal(value.long(), torch.arange(len(value)))


def _which(rows: Tensor, known: Tensor, allowed: float) -> str | None:
    """Return which rows of `known` these are, "" for all of them; None for none."""
    count, total = len(rows), len(known)
    if count > total or rows.shape[1] != known.shape[1]:
        return None  # before any number is looked at: there are thousands of known values
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
    """Say that this one row is the mean over all rows of `known`; None where it is not."""
    if len(rows) != 1 or len(known) < 2 or rows.shape[1] != known.shape[1]:
        return None
    found = near(rows, known.double().mean(dim=0, keepdim=True), allowed)
    return "all tokens, averaged" if found else None
