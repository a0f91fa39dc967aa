"""Show a bisect: a line for every trial while it runs, and its report in every output format."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rich.console import Console
from rich.text import Text as Line

from conformance.commands.bisect.answer import Report
from conformance.commands.bisect.halving import Class
from conformance.commands.bisect.next_step import Next
from conformance.commands.bisect.state import BisectFolder, BisectionState, CandidateTrial
from conformance.errors import ExitCode
from conformance.report.render import markdown, page
from conformance.report.render.terminal import clean
from conformance.report.sections.section import Block, Code, Document, Section, Table, Text, columns
from conformance.report.verdict_styles import STYLES, Family
from conformance.runner.scheduling import (
    CellStarted,
    Event,
    GroupFinished,
    GroupStarted,
    WorkerDied,
)
from conformance.runner.store.files import write_text
from conformance.spec.records import to_json
from conformance.spec.shortening import clip

_ENDED = {ExitCode.OK: Family.PASS, ExitCode.UNEXPECTED: Family.DOUBT}
_FOUND = {Class.GOOD: Family.PASS, Class.BAD: Family.WRONG, Class.UNTESTABLE: Family.DOUBT}
_REST = "report.json"
_WORDS = 200


def write(report: Report, folder: BisectFolder) -> Path:
    """Write report.json, report.md and the page. Return the page's path."""
    answer = document(report)
    path = folder.path / "index.html"
    write_text(folder.path / "report.json", to_json(report, indent=1) + "\n")
    write_text(folder.path / "report.md", markdown.document(answer))
    write_text(path, page.document(answer))
    return path


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
        title = "Other packages that changed"
        yield Table(columns("package", good, bad), moved, title, rest=_REST)
    if report.between:
        between = tuple((name, clip(why)) for name, why in report.between.items())
        yield Table(columns("candidate", "why"), between, "Candidates without a result", rest=_REST)
    if report.trials:
        trials = tuple(
            (
                Text(one.candidate, link=f"runs/{one.run}/index.html" if one.run else ""),
                Text(one.found.value, _FOUND[one.found]),
                clip(one.words),
                one.environment,
                f"{one.build_seconds:.0f} s" if one.built else "reused" * bool(one.environment),
                f"{one.seconds:.0f} s",
            )
            for one in report.trials
        )
        titles = columns("candidate", "found", "signature", "environment", "build", "all")
        yield Table(titles, trials, "Trials", rest=_REST)
    if report.reproduce:
        yield Section("Reproduce both sides", (Code(report.reproduce),))
    if report.command:
        yield Section("Command", (Code(report.command),))


class BisectionProgress:
    """Prints a line for every trial. Its `status`, a context manager, shows what is done now."""

    def __init__(self, state: BisectionState, console: Console) -> None:
        self._console = console
        self._number = len(state.attempts)
        self._label = ""
        self.status = console.status("")
        words = f"{len(state.candidates)} candidates"
        words += f", {self._number} trials from before" if self._number else ""
        console.print(Line(words))

    def begin(self, step: Next) -> None:
        self._number += 1
        again = " again" if step.again else ""
        self._label = f"[{self._number}] {step.candidate.label}{again}"
        if not self._console.is_terminal:
            self._console.print(Line(clean(f"{self._label} …")), soft_wrap=True)
        self.line("its environment")

    def line(self, message: str) -> None:
        """Show the current activity."""
        words = f"{self._label}: {message}".splitlines()[0][:_WORDS]
        self.status.update(Line(clean(words)))

    def event(self, event: Event) -> None:
        """Show an event of the runner."""
        match event:
            case GroupStarted():
                self.line(f"{event.id}: loading")
            case CellStarted():
                self.line(f"{event.id}: {event.case}")
            case GroupFinished():
                self.line(f"{event.id}: done")
            case WorkerDied():
                self.line(f"{event.id}: {event.status.value}: {event.reason}")

    def end(self, attempt: CandidateTrial, outcome: Class) -> None:
        took = f"{attempt.seconds:.0f} s"
        if attempt.environment:
            took += f", environment {attempt.environment} {'built' if attempt.built else 'reused'}"
        text = Line(clean(f"{self._label}: "))
        text.append(outcome.value, style=STYLES[_FOUND[outcome]])
        text.append(clean(f" ({took}): {' '.join(attempt.words.split())[:_WORDS]}"))
        self._console.print(text, soft_wrap=True)
