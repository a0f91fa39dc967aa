"""Take a run through the gate: assess it, repeat unexpected cells, decide."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Collection, Sequence

from conformance.expectations import KnownGaps, assess
from conformance.expectations.entries import refuse_unmatched
from conformance.gate.decide import (
    MOST_REPEATED,
    Decision,
    decide,
    refuse_incomplete,
    settle,
    to_repeat,
)
from conformance.records import Cell, CellResult, Results
from conformance.store import RunFolder

#: Runs cells again and returns the results, one entry for each round.
Repeat = Callable[[Collection[Cell]], Sequence[Results]]


def check(
    run: RunFolder,
    known: KnownGaps,
    cells: Collection[Cell],
    today: dt.date,
    *,
    strict: bool = False,
    repeat: Repeat | None = None,
) -> Decision:
    """Return the decision on a judged run. `cells` are all cells that could exist.

    Raises ConformanceError for an incomplete run and for an entry that matches no cell.
    """
    results = run.results()
    plan = run.plan()
    refuse_incomplete(results, plan)
    refuse_unmatched(known, {*cells, *plan.cells})
    assessed = assess(results, known, today)
    doubtful = to_repeat(assessed)
    notes: list[str] = []
    if repeat is not None and len(doubtful) > MOST_REPEATED:
        notes.append(f"{len(doubtful)} unexpected results are no accident: none was repeated")
    elif repeat is not None and doubtful:
        repeats = repeat([_planned(assessed.cell) for assessed in doubtful])
        assessed = settle(results, assessed, repeats, known, today)
    return decide(results, known, today, assessed=assessed, strict=strict, notes=notes)


def _planned(cell: CellResult) -> Cell:
    """Return the cell as the plan names it, in its own column."""
    return Cell(cell.model, cell.backend, cell.scenario, cell.case)
