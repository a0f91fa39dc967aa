"""Which failures of a run are known gaps, said in its cells."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable
from dataclasses import replace

from conformance.known.assess import Assessed, Finding, assess
from conformance.known.entries import Known
from conformance.records import CellResult, Results


def marked(cells: Iterable[CellResult], assessed: Iterable[Assessed]) -> tuple[CellResult, ...]:
    """The cells, those that are known gaps with the words of their entry."""
    words = {one.cell.id: one.words for one in assessed if one.finding is Finding.KNOWN}
    return tuple(replace(cell, expected=words.get(cell.id, "")) for cell in cells)


def expected(results: Results, known: Known, today: dt.date) -> tuple[CellResult, ...]:
    """A judged run's cells, marked by the entries that hold today."""
    return marked(results.cells, assess(results, known, today))
