"""A sweep's trend, as it is shown: versions across, scenarios down."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

from conformance.records import Verdict
from conformance.report.sections.section import (
    Block,
    Document,
    Entry,
    Note,
    Section,
    Table,
    Text,
    columns,
    verdict_text,
)
from conformance.report.verdict_styles import LOOKS
from conformance.sweep.points import Point
from conformance.sweep.records import Change, Explained, Mark, Row, Trend
from conformance.sweep.trend import together


def document(trend: Trend) -> Document:
    """The overview, each model's grid, what did not pass, and the environments."""
    models = list(dict.fromkeys(row.model for row in trend.rows))
    return Document(
        headline=Text(_headline(trend)),
        about=_about(trend, models),
        notes=(),
        blocks=(
            _legend(trend),
            Section("Overview", (_overview(trend),)),
            *(_model(trend, name) for name in models),
            Section("Every cell that did not pass", (_explained(trend),)),
            Section("The environments", (_environments(trend.points),)),
        ),
    )


def _headline(trend: Trend) -> str:
    verdicts = {Verdict(name): count for name, count in trend.verdicts.items()}
    passed = sum(count for verdict, count in verdicts.items() if verdict.passes)
    known = sum(explained.cells for explained in trend.explained if explained.expected)
    return (
        f"{passed} of {sum(verdicts.values())} cells pass on {len(trend.points)} combinations of "
        f"versions{f'; {known} more are known gaps' if known else ''}"
    )


def _about(trend: Trend, models: Sequence[str]) -> str:
    axes = " × ".join(f"{name} {', '.join(versions)}" for name, versions in trend.axes.items())
    return f"{axes} · {', '.join(models)} · run {trend.run}, {trend.seconds:.0f} s"


def _legend(trend: Trend) -> Section:
    used = [verdict for verdict in LOOKS if trend.verdicts.get(verdict.value)]
    rows = tuple((verdict_text(verdict), LOOKS[verdict].meaning) for verdict in used)
    edge = "A line on an entry's left edge: other bits than in the column before it."
    links = tuple((Text(name, link=name),) for name in ("index.html", "sweep.json", "sweep.csv"))
    legend = Table(columns("verdict", "meaning"), rows, "what the marks mean", folded=True)
    files = Table(columns("file"), links, "the run's own page, and the sweep as data", folded=True)
    return Section("How to read it", (legend, Note(Text(edge, quiet=True)), files))


def _overview(trend: Trend) -> Table:
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in trend.rows:
        groups.setdefault((row.model, row.backend), []).append(row)
    rows: list[tuple[Entry, ...]] = []
    for (model, backend), members in groups.items():
        points = zip(*(row.marks for row in members), strict=True)
        whole = (_mark(together(marks)) for marks in points)
        rows.append((f"{model} {backend}", *whole))
    return _grid(trend, "Overview: versions by model and backend", rows)


def _model(trend: Trend, name: str) -> Section:
    own = [row for row in trend.rows if row.model == name]
    engines = {engine.backend: engine.said for engine in trend.engines if engine.model == name}
    rows: list[tuple[Entry, ...]] = []
    for backend, members in itertools.groupby(own, key=lambda row: row.backend):
        rows.append((Text(backend), *(Text(identity, quiet=True) for identity in engines[backend])))
        rows += [
            (
                row.scenario,
                *(_mark(mark, edge=at in row.changed_at) for at, mark in enumerate(row.marks)),
            )
            for row in members
        ]
    changes = tuple(_change(change) for change in trend.changes if change.model == name)
    none = "No version changed a verdict, an engine's class or the layout of its stream."
    titles = columns("version", "change", "where")
    details: Block = (
        Table(titles, changes, "What a version changed")
        if changes
        else Note(Text(none, quiet=True))
    )
    kind = "" if own[0].architecture == name else f" ({own[0].architecture})"
    return Section(f"{name}{kind}", (_grid(trend, "", rows), details))


def _grid(trend: Trend, title: str, rows: Sequence[tuple[Entry, ...]]) -> Table:
    names = [point.name for point in trend.points]
    return Table(columns("", *names), tuple(rows), title, heads=heads(trend))


def heads(trend: Trend) -> tuple[tuple[str, tuple[tuple[str, int], ...]], ...]:
    """For each package its versions over the columns, each with how many columns it spans."""
    packages = list(trend.axes)
    levels = []
    for at, package in enumerate(packages):
        versions = [
            tuple(point.asked[name] for name in packages[: at + 1]) for point in trend.points
        ]
        spans = ((key[-1], len(list(group))) for key, group in itertools.groupby(versions))
        levels.append((package, tuple(spans)))
    return tuple(levels)


def _mark(mark: Mark, *, edge: bool = False) -> Text:
    look = LOOKS[mark.verdict]
    hint = f"{mark.verdict.value}: {mark.words}" if mark.words else ""
    words = f"{mark.passed}/{mark.cells}"
    return Text(words, look.family, look.symbol, hint=hint, fills=True, edge=edge)


def _change(change: Change) -> tuple[Entry, ...]:
    step = f"{change.package} {change.before} → {change.after}"
    beside = Text(f"with {change.at}" if change.at else "", quiet=True)
    scenarios = Text(", ".join(change.scenarios), quiet=True)
    return (step, beside), change.what, (", ".join(change.backends), scenarios)


def _explained(trend: Trend) -> Table | Note:
    if not trend.explained:
        return Note("There is none.")
    rows = tuple(_row(explained, len(trend.points)) for explained in trend.explained)
    titles = columns("verdict", "cells", "what is said of them", "where", figures=("cells",))
    return Table(titles, rows)


def _row(explained: Explained, points: int) -> tuple[Entry, ...]:
    blamed = f" ({explained.blamed})" if explained.blamed else ""
    where = f"{', '.join(explained.models)} · {', '.join(explained.backends)}"
    every = len(explained.points) == points
    versions = "every combination" if every else ", ".join(explained.points)
    return (
        verdict_text(explained.verdict),
        str(explained.cells),
        (
            f"{explained.words}{blamed}",
            f"known: {explained.expected}" if explained.expected else "",
            Text(explained.command, code=True),
        ),
        (where, ", ".join(explained.scenarios), Text(versions, quiet=True)),
    )


def _environments(points: Sequence[Point]) -> Table:
    figures = ("seconds", "MiB of its own", "MiB with links")
    besides = "besides, not as the lock file says"
    titles = columns("versions", "environment", *figures, besides, figures=figures)
    return Table(titles, tuple(_environment(point) for point in points))


def _environment(point: Point) -> tuple[Entry, ...]:
    if point.untestable:
        untestable = verdict_text(Verdict.UNTESTABLE)
        return (point.name, (untestable, point.untestable), "", "", "", "")
    moved = ", ".join(f"{package} {change}" for package, change in point.moved.items())
    reused = " (was there)" if point.reused else ""
    return (
        *(point.name, Text(point.environment, code=True), f"{point.seconds:.1f}{reused}"),
        *(f"{point.own_mib:.0f}", f"{point.mib:.0f}", moved),
    )
