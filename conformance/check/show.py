"""The answer on a terminal."""

from __future__ import annotations

import shlex
import time
from collections import Counter
from collections.abc import Collection
from pathlib import Path

import psutil
from rich.console import Console
from rich.text import Text

from conformance.check.checked import Answer, Checked, Edit
from conformance.check.models import DUMP
from conformance.records import RunInfo
from conformance.report.render.terminal import shown
from conformance.shortening import few

#: Of so many files it is said how many lines there are to change.
_NAMED = 6

#: Of lines for which no edit is known.
_SHOWN = (
    "a line without - and + is where the value is read, made or written: what is wrong may be "
    "another line"
)

_STYLES = {
    Answer.SAME: ("✓", "green"),
    Answer.NUMERICS: ("≈", "green"),
    Answer.DIFFERS: ("✗", "red"),
    Answer.FAILS: ("✗", "red"),
    Answer.UNSUPPORTED: ("–", "yellow"),
}


def answer(checked: Checked, files: Collection[Path], console: Console) -> None:
    """The answer in a sentence, then what it rests on: the place, the line, the edit. `files` are
    all that are checked: of two with one name the folder is said.
    """

    def line(words: str, style: str = "") -> None:
        console.print(Text(f"    {shown(words)}", style=style), soft_wrap=True)

    symbol, style = _STYLES.get(checked.answer, ("!", "magenta"))
    name = _short(Path(checked.file), files)
    head = Text(f"{symbol} {name} on {checked.model}, {checked.backend}: ", style=style)
    console.print(head.append(shown(checked.sentence), style="default"), soft_wrap=True)
    for finding in checked.findings:
        if finding.words not in checked.sentence:
            line(finding.words)
        if (edit := finding.edit) is not None:
            line(f"{name}:{edit.line}", "bold")
            for before in edit.before.splitlines():
                line(f"- {before}" if edit.after else f"  {before}", "red" if edit.after else "")
            for after in edit.after.splitlines():
                line(f"+ {after}", "green")
    for note in checked.notes:
        line(f"note: {note}", "dim")


def more(
    keys: list[tuple[str, Checked]], run: RunInfo, reports: Path | None, console: Console
) -> None:
    """How much there is to change, how long the command has run, and where there is more to see:
    the page, and a script that shows a difference alone.
    """
    checked = [one for _, one in keys]
    # The line at which an error came is the one.
    unsure = any(
        one.answer is Answer.DIFFERS and not edit.after for one in checked for edit in _edits(one)
    )
    lines = [_SHOWN] if unsure else []
    lines.append(summary(checked, time.time() - psutil.Process().create_time()))
    lines.append(f"page: {checked[0].page}")
    wrong = Answer.DIFFERS, Answer.FAILS
    off = [cell for cell, one in keys if one.backend != DUMP.id and one.answer in wrong]
    if off:
        where = ["--run", run.id, *(["--reports", str(reports)] if reports else [])]
        others = f" (the first of {len(off)}; the page has the others' names)"
        begin = f"alone{others if len(off) > 1 else ''}"
        lines.append(f"{begin}: {shlex.join(['conformance', 'repro', off[0], *where])}")
    for line in lines:
        console.print(line, markup=False, highlight=False, soft_wrap=True)


def summary(checked: list[Checked], seconds: float) -> str:
    """How many lines are to be changed, in which of several files, and how long it took, all in
    all. A line that is shown for several engines is one line.
    """
    files = {Path(one.file) for one in checked}
    changed = {(Path(one.file), edit.line) for one in checked for edit in _edits(one) if edit.after}
    words = f"{len(changed)} line{'s' * (len(changed) != 1)} to change as shown" if changed else ""
    if changed and len(files) > 1:
        counts = sorted(Counter(file for file, _ in changed).items())
        words += f": {few((f'{count} in {_short(file, files)}' for file, count in counts), _NAMED)}"
    return "; ".join(filter(None, (words, f"took {seconds:.0f} s")))


def _edits(checked: Checked) -> list[Edit]:
    return [each.edit for each in checked.findings if each.edit]


def _short(file: Path, files: Collection[Path]) -> str:
    """The name of a file, with its folder's where another one is called the same."""
    alike = any(other.name == file.name for other in files if other != file)
    return f"{file.parent.name}/{file.name}" if alike else file.name
