"""Find a minimal bad set of changes (pure): delta debugging with untestable subsets.

The algorithm is ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", IEEE Transactions on Software Engineering 28 (2002), section 3. Every subset that is not
bad, untestable ones included, counts as good.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise

#: Indices of changes, ascending.
Subset = tuple[int, ...]


def minimise(changes: Subset, suspects: Sequence[Subset] = ()) -> Generator[Subset, bool, Subset]:
    """Yield subsets, receive whether each is bad, and return a bad one from which no single change
    can be left out. All `changes` together must be bad; `suspects` are tried first.
    """
    for suspect in suspects:
        if len(suspect) < len(changes) and (yield suspect):
            changes = suspect
            break
    pieces = 2
    while len(changes) > 1:
        smaller = yield from _smaller(changes, pieces)
        if smaller:
            pieces = 2 if len(smaller) * 2 <= len(changes) else max(pieces - 1, 2)
            changes = smaller
        elif pieces < len(changes):
            pieces = min(len(changes), 2 * pieces)
        else:
            break
    return changes


def _smaller(changes: Subset, count: int) -> Generator[Subset, bool, Subset]:
    """Return a bad piece out of `count`, or else a bad complement of one; () if there is none."""
    pieces = _split(changes, count)
    for piece in pieces:
        if (yield piece):
            return piece
    for piece in pieces if count > 2 else ():
        remaining = tuple(change for change in changes if change not in piece)
        if (yield remaining):
            return remaining
    return ()


def _split(changes: Subset, count: int) -> list[Subset]:
    """Return consecutive pieces of nearly equal length."""
    bounds = [len(changes) * index // count for index in range(count + 1)]
    return [changes[a:b] for a, b in pairwise(bounds)]
