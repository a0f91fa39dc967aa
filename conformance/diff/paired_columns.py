"""Match the columns of two runs that use different environments."""

from __future__ import annotations

from dataclasses import replace

from conformance.records import Cell, CellResult, Column, Results


def by_backend(a: Results, b: Results) -> tuple[Results, Results]:
    """Return both runs with matching columns renamed alike, whatever their environments. Columns of
    the same name match; so do a backend's others if each run has just one.

    A matched column takes its backend's name, or its name in the second run if the backend's name
    is taken. Other columns keep their names, because the match would be ambiguous.
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
    """Return the run's columns of a backend whose names the other run does not have."""
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
