"""What a wrong value holds instead: which other value of the same forward it is, by its numbers.

In float32 two ways of computing the same agree to a millionth and different values not at all,
so a match is an identification.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import torch
from torch import Tensor
from torch.fft import irfft, rfft

from conformance.check.values.known_values import SAME, Known, near

#: Stacks of more are not taken apart.
_PARTS = 128

#: Fewer columns than this are not looked for: they would be found by chance.
_FEW = 4


@dataclass(frozen=True)
class Held:
    """What a value holds: `rows` and `columns` say which of the known value's, "" for all."""

    kind: str
    words: str
    layer: int | None
    rows: str = ""
    sequence: int = 0
    columns: str = ""

    def what(self) -> str:
        """In words: which columns of which value of which tokens."""
        begin = f"{self.columns} of " if self.columns else ""
        return f"{begin}{self.words}{f' of {self.rows}' if self.rows else ''}"


def identify(value: Tensor, known: list[Known], allowed: float = SAME) -> Held | None:
    """Which known value this is, and which of its rows or columns; None for none."""
    if _positions(value, known):
        return Held("positions", "the positions of the tokens, as integers", None)
    if not bool(value.any()):
        return None  # zeros are whatever was set to zero
    forms = [form.double() for form in _forms(value)]
    values = [one for one in known if one.rows.ndim == 2]
    for match, one, rows in product((_which, _mean, _columns), values, forms):
        if (found := match(rows, one.rows, allowed)) is not None:
            return Held(one.kind, one.words, one.layer, sequence=one.sequence, **found)
    return None


def identify_part(
    value: Tensor, other: Tensor, known: list[Known]
) -> tuple[int, Held, Held | None] | None:
    """The first part of a stack (of layers, of steps) that holds another value than its like: its
    number, what it holds, and what the other one does.
    """
    if value.ndim < 2 or value.shape != other.shape or len(value) > _PARTS:
        return None
    for number, pair in enumerate(zip(value, other, strict=True)):
        held, meant = (identify(one, known) for one in pair)
        if held is None or held != meant:
            return (number, held, meant) if held else None
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


def _which(rows: Tensor, known: Tensor, allowed: float) -> dict[str, Any] | None:
    """Which rows of `known` these are: {} for all of them."""
    count, total = len(rows), len(known)
    if count > total or rows.shape[1] != known.shape[1]:
        return None  # before any number is looked at: there are thousands of known values
    known = known.double()
    if count == total:
        return {} if near(rows, known, allowed) else None
    for start in (total - count, *range(total - count)):
        if near(rows, known[start : start + count], allowed):
            last = start == total - count
            words = f"token {start}" if count == 1 else f"tokens {start} to {start + count - 1}"
            if last:
                words = "the last token" if count == 1 else f"the last {count} tokens"
            return {"rows": words}
    return None


def _mean(rows: Tensor, known: Tensor, allowed: float) -> dict[str, Any] | None:
    """Is this one row the mean over all rows of `known`?"""
    if len(rows) != 1 or len(known) < 2 or rows.shape[1] != known.shape[1]:
        return None
    found = near(rows, known.double().mean(dim=0, keepdim=True), allowed)
    return {"columns": "the mean over the tokens"} if found else None


def _starts(row: Tensor, known: Tensor, allowed: float) -> list[int]:
    """Where this row may begin in a longer one: |a - b|² = |a|² + |b|² - 2ab for every window, of
    which no copy is made.
    """
    squares = torch.cat([known.new_zeros(1), known.square().cumsum(0)])
    sizes = squares[len(row) :] - squares[: -len(row)]
    length = len(known) + len(row)
    along = irfft(rfft(known, length) * rfft(row, length).conj(), length)[: len(sizes)]
    far = sizes + row.square().sum() - 2 * along
    found: list[int] = torch.nonzero(far <= allowed**2 * sizes).flatten().tolist()
    return found


def _columns(rows: Tensor, known: Tensor, allowed: float) -> dict[str, Any] | None:
    """Which columns of `known` these are: of all of its rows, or of the last ones."""
    count, width = rows.shape
    if count > len(known) or not _FEW <= width < known.shape[1]:
        return None
    last = known[-count:].double()
    for start in _starts(rows[0], last[0], 2 * allowed):
        if near(rows, last[:, start : start + width], allowed):
            tokens = "the last token" if count == 1 else f"the last {count} tokens"
            return {
                "columns": f"columns {start} to {start + width - 1}",
                "rows": tokens if count < len(known) else "",
            }
    return None
