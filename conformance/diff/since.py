"""Compare a run with the one before it, for its page."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from conformance.diff.compare import compare
from conformance.diff.document import change_rows, counted, fact_tables
from conformance.errors import ConformanceError
from conformance.records import Results
from conformance.report.sections.changes import Changes
from conformance.store import read_results

#: How many runs are searched, newest first, for one with a cell in common.
_LOOKED_AT = 5


def last(folder: Path, results: Results) -> Changes | None:
    """Return the changes since the newest earlier run in the same folder with cells in common.

    Return None if there is none; unfinished and unreadable runs do not count.
    """
    ids = {cell.id for cell in results.cells}
    earlier = [
        path
        for path in folder.parent.glob("*/results.json")
        if path.parent.name < folder.name
        and "+" not in path.parent.name
        and not path.parent.is_symlink()
    ]
    for path in sorted(earlier, reverse=True)[:_LOOKED_AT]:
        try:
            before = read_results(path)
        except ConformanceError:
            continue
        if any(cell.id in ids for cell in before.cells):
            return between(before, results)
    return None


def between(before: Results, after: Results) -> Changes:
    """Return the changes. Raises ConformanceError for two runs without a cell in common."""
    diff = compare(before, after)
    return Changes(
        before=diff.a,
        common=diff.common,
        counted=counted(diff),
        rows=tuple(change_rows(diff)),
        tables=tuple(replace(table, folded=True) for table in fact_tables(diff)),
        notes=diff.notes,
    )
