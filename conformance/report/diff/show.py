"""Lay out the differences of two runs for every format, and for the page of the later run."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import replace
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.report.diff.compare import CellChange, ChangeKind, Diff, compare
from conformance.report.grouping import group_by
from conformance.report.sections.section import (
    Document,
    Entry,
    Note,
    Section,
    Table,
    Text,
    columns,
)
from conformance.report.verdict_styles import Family
from conformance.runner.store import read_results
from conformance.spec.records import Results
from conformance.spec.shortening import clip

_FAMILY = {
    ChangeKind.FAILURE: Family.WRONG,
    ChangeKind.LOST: Family.BROKEN,
    ChangeKind.MARGIN: Family.DOUBT,
    ChangeKind.DIAGNOSIS: Family.DOUBT,
    ChangeKind.NUMERICS: Family.DOUBT,
    ChangeKind.ALONE: Family.NEUTRAL,
    ChangeKind.FIXED: Family.PASS,
    ChangeKind.INEXACT: Family.NEUTRAL,
    ChangeKind.KNOWN: Family.NEUTRAL,
}
_REST = "--json"
_TITLES = columns("change", "model", "backend", "cells", "before", "after", "why")


def document(diff: Diff) -> Document:
    """Return a document with everything that differs, the cells first."""
    (a, b), (before, after) = diff.seconds, diff.peak_mib
    cells = tuple(row for _, row in change_rows(diff))
    tables = [Table(_TITLES, cells, "Cells", rest=_REST)] if cells else []
    only = (
        Table(columns("cell"), tuple((name,) for name in cells), f"Only in {run}", 10, folded=True)
        for run, cells in ((diff.a, diff.only_a), (diff.b, diff.only_b))
        if cells
    )
    return Document(
        headline=Text(headline(diff)),
        about=(
            f"{diff.a} → {diff.b}: wall time {a:.0f} s → {b:.0f} s, "
            f"peak memory {before:.0f} MiB → {after:.0f} MiB"
        ),
        notes=diff.notes,
        blocks=(*tables, *fact_tables(diff), *only),
    )


def headline(diff: Diff) -> str:
    """Return `3 × new failure, 1 × fixed, in 84 common cells; 2 only in the first run`."""
    changed = len({(change.model, change.backend) for change in diff.layouts})
    moved = f", {changed} columns with another layout or engine" if changed else ""
    missing = f"; {len(diff.only_a)} only in the first run" if diff.only_a else ""
    new = f"; {len(diff.only_b)} only in the second" if diff.only_b else ""
    return f"{counted(diff)}{moved}, in {diff.common} common cells{missing}{new}"


def counted(diff: Diff) -> str:
    """Return `3 × new failure, 1 × fixed`."""
    changes = [f"{len(diff.of(kind))} × {kind.value}" for kind in ChangeKind if diff.of(kind)]
    return ", ".join(changes) or "no verdict changed"


def change_rows(diff: Diff) -> Iterator[tuple[str, tuple[Entry, ...]]]:
    """Yield the model and row of each change. Cases of a scenario that changed alike share one."""

    def row(change: CellChange) -> tuple[str, ...]:
        # Margins differ from case to case in their numbers, so the row shows the first one's.
        words = "" if change.kind is ChangeKind.MARGIN else change.words
        where = (change.model, change.backend, change.scenario)
        return (change.kind, *where, change.before, change.after, words)

    for first, *rest in group_by(diff.changes, row).values():
        cases = ", ".join(change.case for change in (first, *rest))
        yield (
            first.model,
            (
                Text(first.kind.value, _FAMILY[first.kind]),
                first.model,
                first.backend,
                Text(f"{first.scenario}: {cases}", cell=first.id),
                first.before,
                first.after,
                clip(first.words),
            ),
        )


def fact_tables(diff: Diff) -> Iterator[Table]:
    """Yield tables of what else differs: versions, layouts, costs."""
    if diff.versions:
        rows = tuple((name, *pair) for name, pair in diff.versions.items())
        yield Table(columns("package", "before", "after"), rows, "Versions", rest=_REST)
    if diff.layouts:
        titles = columns("model", "backend", "what", "before", "after")
        layouts = ((c.model, c.backend, c.what, c.before, c.after) for c in diff.layouts)
        yield Table(titles, tuple(layouts), "Layouts and engines", rest=_REST)
    if diff.costs:
        figures = ("before", "after", "factor")
        titles = columns("model", "backend", "what", *figures, figures=figures)
        costs = (
            (
                *(cost.model, cost.backend, cost.what),
                *(f"{value:.1f} {cost.unit}" for value in (cost.before, cost.after)),
                f"{cost.factor:.2f}",
            )
            for cost in diff.costs
        )
        yield Table(titles, tuple(costs), "Speed and memory", rest=_REST)


#: How many runs are searched, newest first, for one with a cell in common.
_LOOKED_AT = 5


def changes_since_last(folder: Path, results: Results) -> Diff | None:
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
            return compare(before, results)
    return None


def section(diff: Diff, models: Collection[str]) -> tuple[str, Section]:
    """Return a line and a section for the page of these models of the later run."""
    every = list(change_rows(diff))
    rows = tuple(row for model, row in every if model in models)
    line = counted(diff)
    if len(rows) < len(every):
        line = f"{len(rows)} changes here; in the whole run: {line}"
    blocks = (
        Note(f"In {diff.common:,} common cells: {line}."),
        *(Note(Text(note, quiet=True)) for note in diff.notes),
        *([Table(_TITLES, rows, peek=12)] if rows else ()),
        *(replace(table, folded=True) for table in fact_tables(diff)),
    )
    return line, Section(f"Compared with {diff.a}", blocks, id="changes")
