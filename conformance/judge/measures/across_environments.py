"""The same backend in several environments: who observed the very same bits (pure).

Shown, not gated on: other versions of an engine may compute the same in another order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from conformance.judge.measures.relations import compare_exact, same_bits
from conformance.records import Column, Relation

Observed = Mapping[str, Tensor]

TITLE = "the same bits in every environment"


class Environments:
    """One case on all columns: those of one backend are compared with each other, once."""

    def __init__(self, columns: Sequence[Column]) -> None:
        self._backend_of = {column.id: column.backend.id for column in columns}
        self._alike_of: dict[str, tuple[dict[str, Observed], list[list[str]]]] = {}

    def relations(self, column: str, observed: Callable[[str], Observed]) -> tuple[Relation, ...]:
        """How a column's observations stand to those of its backend elsewhere; none where it
        runs in one environment only. `observed` gives a column's.
        """
        backend = self._backend_of[column]
        if backend not in self._alike_of:
            names = [name for name, of in self._backend_of.items() if of == backend]
            columns = {name: observations for name in names if (observations := observed(name))}
            self._alike_of[backend] = columns, alike(columns)
        columns, sets = self._alike_of[backend]
        return (same_elsewhere(column, sets, columns),) if len(columns) > 1 else ()


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
