"""The differences as a table for terminals, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.diff.compare import Change, Diff, Kind
from conformance.report.markdown import plain
from conformance.report.terminal import shown

_ROWS = 60
_WORDS = 240
_STYLES = {Kind.FAILURE: "bold red", Kind.LOST: "red", Kind.MARGIN: "yellow", Kind.FIXED: "green"}

#: Title, header and rows of one part of the answer.
Part = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def headline(diff: Diff) -> str:
    """`3 new failures, 1 fixed in 84 common cells`."""
    found = [f"{len(diff.of(kind))} × {kind.value}" for kind in Kind if diff.of(kind)]
    changed = len({(one.model, one.backend) for one in diff.layouts})
    if changed:
        found.append(f"{changed} columns with another layout or engine")
    gone = f"; {len(diff.only_a)} cells only in {diff.a}" if diff.only_a else ""
    new = f"; {len(diff.only_b)} only in {diff.b}" if diff.only_b else ""
    said = ", ".join(found) or "no verdict changed"
    return f"{diff.a} → {diff.b}: {said}, in {diff.common} common cells{gone}{new}"


def parts(diff: Diff) -> Iterator[Part]:
    """The tables of the answer that have rows."""
    found: list[Part] = [
        (
            "Versions",
            ("package", "before", "after"),
            [(name, *pair) for name, pair in diff.versions.items()],
        ),
        (
            "Cells",
            ("change", "model", "backend", "cells", "before", "after", "why"),
            list(rows(diff.changes)),
        ),
        (
            "Layouts and engines",
            ("model", "backend", "what", "before", "after"),
            [(one.model, one.backend, one.what, one.before, one.after) for one in diff.layouts],
        ),
        (
            "Speed and memory",
            ("model", "backend", "what", "before", "after", "factor"),
            [
                (
                    one.model,
                    one.backend,
                    one.what,
                    f"{one.before:.1f} {one.unit}",
                    f"{one.after:.1f} {one.unit}",
                    f"{one.factor:.2f}",
                )
                for one in diff.costs
            ],
        ),
    ]
    yield from (part for part in found if part[2])


def rows(changes: Sequence[Change]) -> Iterator[tuple[str, ...]]:
    """Cases of one scenario and column that changed alike are one row."""
    groups: dict[tuple[str, ...], list[Change]] = {}
    for one in changes:
        # Margins differ in their numbers from case to case: the first one's are told.
        said = "" if one.kind is Kind.MARGIN else one.words
        key = (one.kind, one.model, one.backend, one.scenario, one.before, one.after, said)
        groups.setdefault(key, []).append(one)
    for (kind, model, backend, scenario, before, after, _), members in groups.items():
        cells = f"{scenario}: {', '.join(one.case for one in members)}"
        words = " ".join(members[0].words.split())
        if len(words) > _WORDS:
            words = words[: _WORDS - 1].rstrip() + "…"
        yield kind, model, backend, cells, before, after, words


def show(diff: Diff, console: Console) -> None:
    """Tables on a terminal, the headline last."""
    for title, header, body in parts(diff):
        table = Table(*header, title=title, title_justify="left", box=None, header_style="bold")
        for row in body[:_ROWS]:
            style = _STYLES.get(Kind(row[0]), "") if title == "Cells" else ""
            table.add_row(*(Text(shown(text)) for text in row), style=style)
        console.print(table)
        if len(body) > _ROWS:
            console.print(f"… and {len(body) - _ROWS} more (see --json)")
    for note in diff.notes:
        console.print(Text(shown(note), style="dim"))
    console.print(Text(shown(_total(diff)), style="dim"))
    console.print(Text(shown(headline(diff)), style="bold"))


def markdown(diff: Diff) -> str:
    """The same for a CI's summary."""
    lines = [f"## {plain(headline(diff))}", "", plain(_total(diff)), ""]
    lines += [f"> {plain(note)}" for note in diff.notes]
    for title, header, body in parts(diff):
        lines += ["", f"### {title}", "", f"| {' | '.join(header)} |", "|---" * len(header) + "|"]
        lines += [f"| {' | '.join(map(plain, row))} |" for row in body[:_ROWS]]
        if len(body) > _ROWS:
            lines += ["", f"… and {len(body) - _ROWS} more"]
    return "\n".join(lines) + "\n"


def _total(diff: Diff) -> str:
    (a, b), (mine, theirs) = diff.seconds, diff.peak_mib
    return f"wall time {a:.0f} s → {b:.0f} s, peak memory {mine:.0f} MiB → {theirs:.0f} MiB"
