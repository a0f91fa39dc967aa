"""Which failures of a run are known gaps, said in its cells."""

from __future__ import annotations

import datetime as dt
from dataclasses import replace

from conformance.expectations.assess import Finding, assess
from conformance.expectations.entries import Known
from conformance.records import CellResult, Results


def expected(results: Results, known: Known, today: dt.date) -> tuple[CellResult, ...]:
    """A judged run's cells, those that are known gaps with the words of their entry."""
    found = assess(results, known, today)
    words = {one.cell.id: one.words for one in found if one.finding is Finding.KNOWN}
    return tuple(replace(cell, expected=words.get(cell.id, "")) for cell in results.cells)
