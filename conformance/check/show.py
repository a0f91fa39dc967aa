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
    symbol, style = _STYLES.get(checked.answer, ("!", "magenta"))
    name = _short(Path(checked.file), files)
    head = Text(f"{symbol} {name} on {checked.model}, {checked.backend}: ", style=style)
    console.print(head.append(shown(checked.sentence), style="default"), soft_wrap=True)
    for finding in checked.findings:
        if finding.words not in checked.sentence:
            console.print(Text(f"    {shown(finding.words)}"), soft_wrap=True)
        if finding.edit is not None:
            _edit(finding.edit, name, console)
    for note in checked.notes:
        console.print(Text(f"    note: {shown(note)}", style="dim"), soft_wrap=True)


def more(
    keys: list[tuple[str, Checked]], run: RunInfo, reports: Path | None, console: Console
) -> None:
    """How much there is to change, how long the command has run, and where there is more to see:
    the page, and a script that shows a difference alone.
    """
    waited = time.time() - psutil.Process().create_time()
    told = summary([one for _, one in keys], waited)
    if any(_only_shown(one) for _, one in keys):
        console.print(_SHOWN, markup=False, highlight=False, soft_wrap=True)
    console.print(told, markup=False, highlight=False, soft_wrap=True)
    console.print(f"page: {keys[0][1].page}", markup=False, highlight=False, soft_wrap=True)
    ran = [(cell, one) for cell, one in keys if one.backend != DUMP.id]
    off = [cell for cell, one in ran if one.answer in (Answer.DIFFERS, Answer.FAILS)]
    if off:
        where = ["--run", run.id, *(["--reports", str(reports)] if reports else [])]
        line = shlex.join(["conformance", "repro", off[0], *where])
        begin = "alone"
        if len(off) > 1:
            begin += f" (the first of {len(off)}; the page has the others' names)"
        console.print(f"{begin}: {line}", markup=False, highlight=False, soft_wrap=True)


def _only_shown(checked: Checked) -> bool:
    """Is a line of it shown for which no edit is known? That at which an error came is the one."""
    return checked.answer is Answer.DIFFERS and any(
        finding.edit is not None and not finding.edit.after for finding in checked.findings
    )


def summary(checked: list[Checked], seconds: float) -> str:
    """How many lines are to be changed, in which of several files, and how long it took, all in
    all. A line that is shown for several engines is one line.
    """
    files = {Path(one.file) for one in checked}
    lines = dict.fromkeys(
        (Path(one.file), finding.edit.line)
        for one in checked
        for finding in one.findings
        if finding.edit is not None and finding.edit.after
    )
    if not lines:
        return f"took {seconds:.0f} s"
    some = f"{len(lines)} line{'s' * (len(lines) != 1)} to change as shown"
    counts = Counter(file for file, _ in lines)
    where = [_short(file, files) for file in counts]
    if len(where) > 1:
        each = zip(counts.values(), where, strict=True)
        some += f": {few((f'{count} in {name}' for count, name in each), _NAMED)}"
    elif len(files) > 1:
        some += f", in {where[0]}"
    return f"{some}; took {seconds:.0f} s"


def _short(file: Path, files: Collection[Path]) -> str:
    """The name of a file, with its folder's where another one is called the same."""
    alike = any(other.name == file.name for other in files if other != file)
    return f"{file.parent.name}/{file.name}" if alike else file.name


def _edit(edit: Edit, name: str, console: Console) -> None:
    console.print(Text(f"    {name}:{edit.line}", style="bold"), soft_wrap=True)
    mark = "-" if edit.after else " "
    for line in edit.before.splitlines():
        console.print(
            Text(f"    {mark} {shown(line)}", style="red" if edit.after else ""), soft_wrap=True
        )
    for line in edit.after.splitlines():
        console.print(Text(f"    + {shown(line)}", style="green"), soft_wrap=True)
