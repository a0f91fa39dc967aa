"""Columns of two runs that were put on different environments, side by side."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

from conformance.records import Cell, CellResult, Results, backend_of


def by_backend(results: Results) -> Results:
    """The run with every column named after its backend alone, whatever environment it was on.

    A backend that one run has in several environments keeps those names: which of them is meant
    is not for us to say.
    """
    count = Counter(backend_of(one.id) for one in results.backends)
    names = {
        one.id: backend_of(one.id) for one in results.backends if count[backend_of(one.id)] == 1
    }
    return replace(
        results,
        backends=tuple(replace(one, id=names.get(one.id, one.id)) for one in results.backends),
        groups=tuple(
            replace(one, backend=names.get(one.backend, one.backend)) for one in results.groups
        ),
        cells=tuple(_renamed(one, names.get(one.backend, one.backend)) for one in results.cells),
    )


def _renamed(cell: CellResult, backend: str) -> CellResult:
    plain = Cell(cell.model, backend, cell.scenario, cell.case)
    return replace(cell, id=plain.id, backend=backend)
