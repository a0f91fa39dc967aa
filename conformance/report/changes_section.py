"""What changed since another run, as the page shows it; `conformance.diff` finds it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace

from conformance.report.verdict_styles import Family


@dataclass(frozen=True, slots=True)
class Entry:
    """Cells of one column and scenario that changed alike. `id` is one of them, in this run."""

    kind: str
    family: Family
    model: str
    backend: str
    cells: str
    before: str
    after: str
    words: str
    id: str


@dataclass(frozen=True, slots=True)
class Table:
    """Facts of another kind: versions, layouts, costs."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True, slots=True)
class Changes:
    """Against run `before`, in `common` cells. `said` is all of it in one line."""

    before: str
    common: int
    said: str
    entries: tuple[Entry, ...] = ()
    tables: tuple[Table, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def any(self) -> bool:
        return bool(self.entries or self.tables)

    def of(self, models: Collection[str]) -> Changes:
        """What concerns these models: their entries, and the facts of everything."""
        entries = tuple(entry for entry in self.entries if entry.model in models)
        said = f"{len(entries)} changes here; in the whole run: {self.said}"
        return replace(self, entries=entries, said=said)
