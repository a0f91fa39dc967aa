"""The fewest changes that are bad together (pure): delta debugging with untestable subsets.

The algorithm ddmin of Zeller and Hildebrandt, "Simplifying and Isolating Failure-Inducing
Input", IEEE Transactions on Software Engineering 28 (2002), section 3: whatever is not bad,
untestable subsets included, counts as not bad.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from itertools import pairwise

#: Changes by index, ascending.
Subset = tuple[int, ...]


def minimise(changes: Subset, suspects: Sequence[Subset] = ()) -> Generator[Subset, bool, Subset]:
    """Yields subsets and is told whether each is bad; returns a bad one from which no single
    change can be left out. All `changes` together are bad; `suspects` are tried first.
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
    """One of so many pieces that is bad, or else all but one of them; () when none is."""
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
    """Consecutive pieces of nearly equal length."""
    bounds = [len(changes) * index // count for index in range(count + 1)]
    return [changes[a:b] for a, b in pairwise(bounds)]
