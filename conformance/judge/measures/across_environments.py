"""The same backend in several environments: who observed the very same bits (pure).

Shown, not gated on: other versions of an engine may compute the same in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from conformance.judge.measures.relations import compare_exact, same_bits
from conformance.records import Relation

Observed = Mapping[str, Tensor]

TITLE = "the same bits in every environment"


class Environments:
    """What the columns of one backend observed of a case: compared with each other, once."""

    def __init__(self, observed: Mapping[str, Observed]) -> None:
        self._columns = {
            name: observations for name, observations in observed.items() if observations
        }
        self._sets = alike(self._columns)

    def relations(self, column: str) -> tuple[Relation, ...]:
        """How a column's observations stand to those of its backend elsewhere; none where it
        runs in one environment only.
        """
        if len(self._columns) < 2:
            return ()
        return (same_elsewhere(column, self._sets, self._columns),)


def alike(columns: Mapping[str, Observed]) -> list[list[str]]:
    """The columns in sets that observed bitwise the same, in the order of their first."""
    sets: list[list[str]] = []
    for name, observed in columns.items():
        for members in sets:
            if same_bits(columns[members[0]], observed):
                members.append(name)
                break
        else:
            sets.append([name])
    return sets


def same_elsewhere(
    own: str, sets: Sequence[Sequence[str]], columns: Mapping[str, Observed]
) -> Relation:
    """Whether every other environment observed what this one did, and where the first
    difference to each is.
    """
    clauses = []
    for names in sets:
        others = ", ".join(name for name in names if name != own)
        if own in names:
            clauses += [f"the same in {others}"] if others else []
            continue
        first = compare_exact(columns[own], columns[names[0]])[0]
        clauses.append(f"others in {others} ({first.site}: {first.message})")
    return Relation(TITLE, holds=len(sets) == 1, detail="; ".join(clauses), gates=False)
