"""What changed since the run before this one, for its page."""

from __future__ import annotations

from pathlib import Path

from conformance.diff.compare import Change, Diff, Kind, compare
from conformance.diff.text import parts
from conformance.errors import ConformanceError
from conformance.records import Results
from conformance.report.changes_section import Changes, Entry, Table
from conformance.report.verdict_styles import Family
from conformance.store import read_results

_FAMILY = {
    Kind.FAILURE: Family.WRONG,
    Kind.LOST: Family.BROKEN,
    Kind.MARGIN: Family.DOUBT,
    Kind.DIAGNOSIS: Family.DOUBT,
    Kind.FIXED: Family.PASS,
    Kind.INEXACT: Family.NEUTRAL,
}
#: Runs that are looked at, the newest first, for one with a cell in common.
_LOOKED_AT = 5
_WORDS = 240


def last(folder: Path, results: Results) -> Changes | None:
    """Against the newest earlier run beside this one that has cells in common with it.

    None when there is none; runs that are not finished or not readable do not count.
    """
    mine = {cell.id for cell in results.cells}
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
        if any(cell.id in mine for cell in before.cells):
            return between(before, results)
    return None


def between(before: Results, after: Results) -> Changes:
    """Raises ConformanceError for two runs without a cell in common."""
    diff = compare(before, after)
    return Changes(
        before=diff.a,
        common=diff.common,
        said=_said(diff),
        entries=tuple(_entries(diff)),
        tables=tuple(
            Table(title, header, tuple(rows))
            for title, header, rows in parts(diff)
            if title != "Cells"
        ),
        notes=diff.notes,
    )


def _said(diff: Diff) -> str:
    found = [f"{len(diff.of(kind))} × {kind.value}" for kind in Kind if diff.of(kind)]
    return ", ".join(found) or "no verdict changed"


def _entries(diff: Diff) -> list[Entry]:
    """Cases of one scenario and column that changed alike are one entry."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for one in diff.changes:
        said = "" if one.kind is Kind.MARGIN else one.words
        key = (one.kind, one.model, one.backend, one.scenario, one.before, one.after, said)
        groups.setdefault(key, []).append(one)
    return [
        Entry(
            kind=first.kind.value,
            family=_FAMILY[first.kind],
            model=first.model,
            backend=first.backend,
            cells=f"{first.scenario}: {', '.join(one.case for one in members)}",
            before=first.before,
            after=first.after,
            words=_short(first.words),
            id=first.id,
        )
        for first, *rest in groups.values()
        for members in [[first, *rest]]
    ]


def _short(text: str) -> str:
    words = " ".join(text.split())
    return words if len(words) <= _WORDS else words[: _WORDS - 1].rstrip() + "…"
