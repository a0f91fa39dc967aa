"""Columns of two runs that were put on different environments, side by side."""

from __future__ import annotations

from dataclasses import replace

from conformance.records import Cell, CellResult, Column, Results


def by_backend(a: Results, b: Results) -> tuple[Results, Results]:
    """Both runs with the columns that belong together named alike, whatever environment they
    were on: those of one name, and of a backend's others the only one that each run has left.

    That one is called after its backend, or where another column is, as in the second run. What
    remains keeps its name: which of several is meant is not for us to say.
    """
    before_columns, after_columns = dict[str, Column](), dict[str, Column]()
    for backend in dict.fromkeys(column.backend.id for column in a.columns):
        first, second = _without_partner(a, b, backend), _without_partner(b, a, backend)
        if len(first) == len(second) == 1:
            [before], [after] = first, second
            named_so = any(c.backend.id == backend and c.id != before.id for c in a.columns)
            named = after if named_so else Column(after.backend)
            before_columns[before.id] = after_columns[after.id] = named
    return _named(a, before_columns), _named(b, after_columns)


def _without_partner(run: Results, other: Results, backend: str) -> list[Column]:
    """The run's columns of a backend that the other run does not have under the same name."""
    known = {column.id for column in other.columns}
    return [
        column for column in run.columns if column.backend.id == backend and column.id not in known
    ]


def _named(results: Results, columns: dict[str, Column]) -> Results:
    now = {column.id: columns.get(column.id, column) for column in results.columns}
    called = {old: column.id for old, column in now.items()}
    return replace(
        results,
        columns=tuple(now.values()),
        groups=tuple(
            replace(group, backend=called.get(group.backend, group.backend))
            for group in results.groups
        ),
        cells=tuple(_renamed(cell, called[cell.backend]) for cell in results.cells),
    )


def _renamed(cell: CellResult, column: str) -> CellResult:
    plain = Cell(cell.model, column, cell.scenario, cell.case)
    return replace(cell, id=plain.id, backend=column)
