"""Print a check's answer on a terminal."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator
from itertools import groupby
from pathlib import Path

from rich.console import Console
from rich.text import Text

from conformance.commands.check.checked import CheckAnswer, Checked
from conformance.report.render.terminal import clean
from conformance.runner.planning.named import DUMP
from conformance.runner.processes.sessions import seconds_running
from conformance.spec.records import RunInfo

#: The style of a line of a diff, by its first character.
_SIGNS = {"-": "red", "+": "green", " ": ""}

_STYLES = {
    CheckAnswer.SAME: ("✓", "green"),
    CheckAnswer.NUMERICS: ("≈", "green"),
    CheckAnswer.DIFFERS: ("✗", "red"),
    CheckAnswer.FAILS: ("✗", "red"),
    CheckAnswer.UNSUPPORTED: ("–", "yellow"),
}


def answer(checked: Checked, files: Collection[Path], console: Console) -> None:
    """Print the answer in a sentence, then its findings, lines and suggested edit. `files` are all
    checked files: if two have the same name, their folders are printed too.
    """

    def line(words: str, style: str = "") -> None:
        console.print(Text(f"    {clean(words)}", style=style), soft_wrap=True)

    symbol, style = _STYLES.get(checked.answer, ("!", "magenta"))
    file = Path(checked.file)
    alike = any(other.name == file.name for other in files if other != file)
    name = f"{file.parent.name}/{file.name}" if alike else file.name
    head = Text(f"{symbol} {name} on {checked.model}, {checked.backend}: ", style=style)
    console.print(head.append(clean(checked.sentence), style="default"), soft_wrap=True)
    for finding in checked.findings:
        if finding.words not in checked.sentence:
            line(finding.words)
        if finding.line:
            line(f"{name}:{finding.line}", "bold")
            line(f"  {finding.code}")
    for number, change in changes_in(checked.diff):
        line(f"{name}:{number}", "bold")
        for row in change:
            line(f"{row[0]} {row[1:]}", _SIGNS[row[0]])
    for note in checked.notes:
        line(f"note: {note}", "dim")


def changes_in(diff: str) -> Iterator[tuple[int, list[str]]]:
    """Yield each change of a unified diff: its first line's number, and its lines. Added lines come
    with the line above them.
    """
    number, above = 0, ""
    for changed, rows in groupby(diff.splitlines()[2:], lambda row: row[0] in "-+"):
        change = list(rows)
        if changed:
            removed = sum(row[0] == "-" for row in change)
            added = not removed and above
            yield number - bool(added), [above, *change] if added else change
            number += removed
            continue
        for row in change:
            begin = re.match(r"@@ -(\d+)", row)
            number = int(begin[1]) if begin else number + 1
            above = "" if begin else row


def more(
    keys: list[tuple[str, Checked]], run: RunInfo, reports: Path | None, console: Console
) -> None:
    """Print the command's duration, the page's path, and how to reproduce the first difference."""
    checked = [one for _, one in keys]
    lines = [f"took {seconds_running():.0f} s", f"page: {checked[0].page}"]
    wrong = CheckAnswer.DIFFERS, CheckAnswer.FAILS
    off = [cell for cell, one in keys if one.backend != DUMP.id and one.answer in wrong]
    if off:
        where = ["--run", run.id, *(["--reports", str(reports)] if reports else [])]
        others = f" (the first of {len(off)}; the page has the others' names)"
        begin = f"alone{others if len(off) > 1 else ''}"
        lines.append(f"{begin}: {shlex.join(['conformance', 'repro', off[0], *where])}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)
