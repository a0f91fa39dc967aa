"""A report as tables on a terminal, and as Markdown."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console
from rich.table import Column, Table
from rich.text import Text

from conformance.bisect.headline import clipped
from conformance.bisect.report import Report
from conformance.errors import ExitCode
from conformance.report.markdown import plain
from conformance.report.terminal import shown

_ROWS = 60
_STYLES = {ExitCode.OK: "bold green", ExitCode.UNEXPECTED: "bold yellow"}

#: Title, header and rows of one part of the answer.
Part = tuple[str, tuple[str, ...], list[tuple[str, ...]]]


def parts(report: Report) -> Iterator[Part]:
    """The tables of the answer that have rows."""
    good, bad = report.good or "good", report.bad or "bad"
    found: list[Part] = [
        (
            "What changed",
            ("cells", "what", good, bad),
            [
                (", ".join(one.cells), one.part, one.before or "–", one.after or "–")
                for one in report.changed
            ],
        ),
        (
            "Other packages that moved with it",
            ("package", good, bad),
            [(name, a or "–", b or "–") for name, (a, b) in report.moved.items()],
        ),
        (
            "Nothing is known of",
            ("candidate", "why"),
            [(name, clipped(why)) for name, why in report.between.items()],
        ),
        (
            "Trials",
            ("candidate", "found", "signature", "environment", "build", "all"),
            [
                (
                    one.candidate,
                    one.found.value,
                    clipped(one.words),
                    one.environment,
                    f"{one.build_seconds:.0f} s" if one.built else "reused" * bool(one.environment),
                    f"{one.seconds:.0f} s",
                )
                for one in report.trials
            ],
        ),
    ]
    yield from (part for part in found if part[2])


def cost(report: Report) -> str:
    """What it took."""
    return (
        f"{len(report.trials)} trials of {report.candidates} candidates in {report.seconds:.0f} s; "
        f"{report.environments} environments ({report.built} built now, in "
        f"{report.build_seconds:.0f} s), {report.disk_mib / 1024:.1f} GiB on the disk"
    )


def show(report: Report, console: Console) -> None:
    """Tables on a terminal, the headline last."""
    for title, header, rows in parts(report):
        columns = [Column(name, overflow="fold") for name in header]
        table = Table(*columns, title=title, title_justify="left", box=None, header_style="bold")
        for row in rows[:_ROWS]:
            table.add_row(*(Text(shown(text)) for text in row))
        console.print(table)
        if len(rows) > _ROWS:
            console.print(f"… and {len(rows) - _ROWS} more (see report.json)")
    for words in (report.held, *report.notes):
        if words:
            console.print(Text(shown(words)))
    console.print(Text(cost(report), style="dim"))
    if report.reproduce:
        console.print(Text(shown(f"both sides again: {report.reproduce}")), soft_wrap=True)
    style = _STYLES.get(report.exit_code, "bold red")
    console.print(Text(shown(report.headline), style=style), soft_wrap=True)


def markdown(report: Report) -> str:
    """The same for a CI's summary or an issue."""
    lines = [f"## {plain(report.headline)}", "", plain(cost(report)), ""]
    lines += [f"> {plain(words)}" for words in (report.held, *report.notes) if words]
    for title, header, rows in parts(report):
        lines += ["", f"### {title}", ""]
        lines += [f"| {' | '.join(map(plain, header))} |", "|---" * len(header) + "|"]
        lines += [f"| {' | '.join(map(plain, row))} |" for row in rows[:_ROWS]]
        if len(rows) > _ROWS:
            lines += ["", f"… and {len(rows) - _ROWS} more"]
    if report.reproduce:
        lines += ["", "Both sides again:", "", "```sh", report.reproduce, "```"]
    return "\n".join(lines) + "\n"
