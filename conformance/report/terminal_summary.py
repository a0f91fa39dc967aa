"""The table and the headline shown on the terminal at the end of a run."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console
from rich.text import Text as Line

from conformance.records import Finding, Results, Verdict
from conformance.report.render.terminal import blocks, line, shown
from conformance.report.sections import gaps as gaps_section
from conformance.report.sections.findings import CellsSummary, by_group, headline_of, troubles
from conformance.report.sections.section import Table, Text, columns, verdict_text
from conformance.shortening import few

_TROUBLES = 12


def summary(results: Results, report_path: Path, console: Console) -> None:
    """Print the matrix of models and backends, known gaps, new findings, and the page's path."""
    blocks([_matrix(results), *filter(None, [gaps_section.brief(results)])], console)
    listed = troubles(results)
    for trouble in listed[:_TROUBLES]:
        models = few(trouble.models, 4)
        words = line(verdict_text(trouble.verdict))
        words.append(
            shown(f"  {', '.join(trouble.backends)} · {models} · {trouble.where}"), style="default"
        )
        if trouble.blamed:
            words.append(f" · {trouble.blamed}", style="default")
        if trouble.finding is not Finding.UNEXPECTED:
            words.append(f" ({trouble.finding})", style="dim")
        console.print(words)
        console.print(Line(shown(f"    {trouble.text}"), style="dim"))
    if len(listed) > _TROUBLES:
        console.print(f"… and {len(listed) - _TROUBLES} more in the report")
    console.print()
    console.print(Line(headline_of(results), style="bold"))
    if selection := results.selection.words:
        console.print(Line(shown(selection)))
    # Not wrapped: a path broken over two lines cannot be clicked or copied.
    console.print(Line(shown(str(report_path))), soft_wrap=True)


def _matrix(results: Results) -> Table:
    groups = by_group(results)
    backends = list(dict.fromkeys(backend for _, backend in groups))
    models = dict.fromkeys(model for model, _ in groups)
    rows = tuple(
        (model, *(_total(groups.get((model, backend))) for backend in backends)) for model in models
    )
    return Table(columns("model", *backends), rows, first=len(rows))


def _total(total: CellsSummary | None) -> str | Text:
    if total is None:
        return ""
    if total.new or total.findings.get(Finding.NUMERICS):
        return verdict_text(total.verdict, total.word)
    return verdict_text(Verdict.MATCH if total.passed else Verdict.SKIPPED, total.word)
