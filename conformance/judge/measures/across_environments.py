"""The same backend in several environments: which ones observed the same bits (pure).

For information only: other versions of an engine may compute in another order.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from conformance.judge.measures.relations import compare_exact, same_bits
from conformance.records import Relation

Observed = Mapping[str, Tensor]

TITLE = "the same bits in every environment"


class Environments:
    """The observations of one case by all columns of a backend, compared once."""

    def __init__(self, observed: Mapping[str, Observed]) -> None:
        self._columns = {
            name: observations for name, observations in observed.items() if observations
        }
        self._sets = alike(self._columns)

    def relations(self, column: str) -> tuple[Relation, ...]:
        """Return how a column compares with its backend's other columns; () if there is none."""
        if len(self._columns) < 2:
            return ()
        return (same_elsewhere(column, self._sets, self._columns),)


def alike(columns: Mapping[str, Observed]) -> list[list[str]]:
    """Group the columns whose observations are bitwise equal, in order of first appearance."""
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
    """Return whether all environments observed the same bits, with the first difference to each."""
    clauses = []
    for names in sets:
        others = ", ".join(name for name in names if name != own)
        if own in names:
            clauses += [f"the same in {others}"] if others else []
            continue
        first = compare_exact(columns[own], columns[names[0]])[0]
        clauses.append(f"others in {others} ({first.site}: {first.message})")
    return Relation(TITLE, holds=len(sets) == 1, detail="; ".join(clauses), gates=False)
