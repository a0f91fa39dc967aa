"""Differences from another run, as the page shows them; `conformance.diff` finds them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from conformance.report.sections.section import Block, Entry, Note, Section, Table, Text, columns


@dataclass(frozen=True, slots=True)
class Changes:
    """Differences from run `before`, in `common` cells; `counted` is a one-line summary.

    `rows` hold a model and the row of cells that changed alike.
    """

    before: str
    common: int
    counted: str
    rows: tuple[tuple[str, tuple[Entry, ...]], ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    def of(self, models: Collection[str]) -> Changes:
        """Keep the rows of these models, and everything that is not about cells."""
        rows = tuple(row for row in self.rows if row[0] in models)
        count = f"{len(rows)} changes here; in the whole run: {self.counted}"
        return replace(self, rows=rows, counted=count)


def cells_table(rows: tuple[tuple[Entry, ...], ...], title: str = "", rest: str = "") -> Table:
    titles = columns("change", "model", "backend", "cells", "before", "after", "why")
    return Table(titles, rows, title, rest=rest, peek=12)


def section(changes: Changes) -> Section:
    """Return all of it as a section for the page of the later run."""
    blocks: list[Block] = [
        Note(f"In {changes.common:,} common cells: {changes.counted}."),
        *(Note(Text(note, quiet=True)) for note in changes.notes),
    ]
    if changes.rows:
        blocks.append(cells_table(tuple(row for _, row in changes.rows)))
    return Section(f"Compared with {changes.before}", (*blocks, *changes.tables), id="changes")
