"""Lay out a bisect's report for every output format."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.bisect.presentation.report import Report
from conformance.bisect.search import Class
from conformance.errors import ExitCode
from conformance.report.sections.section import Block, Code, Document, Section, Table, Text, columns
from conformance.report.verdict_styles import Family
from conformance.shortening import clip

_ENDED = {ExitCode.OK: Family.PASS, ExitCode.UNEXPECTED: Family.DOUBT}
_FOUND = {Class.GOOD: Family.PASS, Class.BAD: Family.WRONG, Class.UNTESTABLE: Family.DOUBT}
_REST = "report.json"


def document(report: Report) -> Document:
    """Return a document with the answer, the effort, and every trial."""
    return Document(
        headline=Text(report.headline, _ENDED.get(report.exit_code, Family.WRONG)),
        about=(
            f"{len(report.trials)} trials of {report.candidates} candidates in "
            f"{report.seconds:.0f} s; {report.environments} environments ({report.built} built "
            f"now, in {report.build_seconds:.0f} s), {report.disk_mib / 1024:.1f} GiB on the disk"
        ),
        notes=tuple(filter(None, (report.held, *report.notes))),
        blocks=tuple(_blocks(report)),
    )


def _blocks(report: Report) -> Iterator[Block]:
    good, bad = report.good or "good", report.bad or "bad"
    if report.changed:
        rows = tuple(
            (", ".join(change.cells), change.part, change.before or "–", change.after or "–")
            for change in report.changed
        )
        yield Table(columns("cells", "what", good, bad), rows, "What changed", rest=_REST)
    if report.moved:
        moved = tuple((name, a or "–", b or "–") for name, (a, b) in report.moved.items())
        title = "Other packages that moved with it"
        yield Table(columns("package", good, bad), moved, title, rest=_REST)
    if report.between:
        between = tuple((name, clip(why)) for name, why in report.between.items())
        yield Table(columns("candidate", "why"), between, "Nothing is known of", rest=_REST)
    if report.trials:
        yield _trials(report)
    if report.reproduce:
        yield Section("Both sides again", (Code(report.reproduce),))
    if report.command:
        yield Section("Asked", (Code(report.command),))


def _trials(report: Report) -> Table:
    rows = tuple(
        (
            Text(trial.candidate, link=f"runs/{trial.run}/index.html" if trial.run else ""),
            Text(trial.found.value, _FOUND[trial.found]),
            clip(trial.words),
            trial.environment,
            f"{trial.build_seconds:.0f} s" if trial.built else "reused" * bool(trial.environment),
            f"{trial.seconds:.0f} s",
        )
        for trial in report.trials
    )
    titles = columns("candidate", "found", "signature", "environment", "build", "all")
    return Table(titles, rows, "Trials", rest=_REST)
