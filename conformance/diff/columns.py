"""Columns of two runs that were put on different environments, side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from conformance.records import Cell, CellResult, Column, Results


def by_backend(results: Results) -> Results:
    """The run with every column named after its backend alone, whatever environment it was on.

    A backend that one run has in several environments keeps those names: which of them is meant
    is not for us to say.
    """
    count = Counter(column.backend.id for column in results.columns)
    columns = {
        column.id: Column(column.backend) if count[column.backend.id] == 1 else column
        for column in results.columns
    }
    names = {old: column.id for old, column in columns.items()}
    return replace(
        results,
        columns=tuple(columns.values()),
        groups=tuple(
            replace(group, backend=names.get(group.backend, group.backend))
            for group in results.groups
        ),
        cells=tuple(_renamed(cell, names[cell.backend]) for cell in results.cells),
    )


def _renamed(cell: CellResult, column: str) -> CellResult:
    plain = Cell(cell.model, column, cell.scenario, cell.case)
    return replace(cell, id=plain.id, backend=column)
