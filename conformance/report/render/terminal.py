"""Render sections on a terminal. A run's text cannot control the terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rich import table as rich
from rich.console import Console
from rich.text import Text as Line

from conformance.report.sections.section import (
    Block,
    Code,
    Document,
    Entry,
    Facts,
    Note,
    Section,
    Table,
    Text,
    texts,
)
from conformance.report.verdict_styles import STYLES

#: Wide enough to measure any table's full width.
_WIDE = 10_000

#: Control characters except tab and newline.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def clean(text: str) -> str:
    """Replace control characters in a run's text."""
    return _CONTROL.sub("\N{REPLACEMENT CHARACTER}", text.replace("\r\n", "\n"))


def line(text: str | Text) -> Line:
    """Style a text like its family."""
    text = Text(text) if isinstance(text, str) else text
    style = STYLES[text.family] if text.family else "dim" if text.quiet else ""
    words = Line(clean(f"{text.symbol} {text.words}" if text.symbol else text.words), style=style)
    return words.append(clean(f" ({text.tag})"), style="dim") if text.tag else words


def document(answer: Document, console: Console) -> None:
    """Print a document, the headline last, where the reader looks."""
    blocks(answer.blocks, console)
    for note in answer.notes:
        console.print(Line(clean(note)))
    console.print(Line(clean(answer.about), style="dim"))
    family = answer.headline.family
    style = f"bold {STYLES[family]}" if family else "bold"
    console.print(Line(clean(answer.headline.words), style=style), soft_wrap=True)


def blocks(several: Sequence[Block], console: Console) -> None:
    """Print blocks one below the other."""
    for block in several:
        match block:
            case Section():
                console.print(Line(clean(block.title), style="bold"))
                blocks(block.blocks, console)
            case Note():
                console.print(line(block.text), soft_wrap=True)
            case Facts():
                facts = rich.Table.grid(padding=(0, 2))
                for name, value in block.pairs:
                    facts.add_row(Line(clean(name), style="dim"), Line(clean(value)))
                console.print(facts)
            case Code():
                console.print(Line(clean(block.text)), soft_wrap=True)
            case Table():
                _table(block, console)


def _table(table: Table, console: Console) -> None:
    columns = (
        rich.Column(
            Line(clean(column.title)), justify="right" if column.figure else "left", overflow="fold"
        )
        for column in table.columns
    )
    grid = rich.Table(
        *columns,
        title=Line(clean(table.title)) if table.title else None,
        title_justify="left",
        box=None,
        pad_edge=False,
        header_style="bold",
    )
    for row in table.rows[: table.first]:
        grid.add_row(*map(_entry, row))
    if console.measure(grid, options=console.options.update(width=_WIDE)).maximum > _most(console):
        _paragraphs(table, console)
    else:
        console.print(grid)
    hidden = len(table.rows) - table.first
    if hidden > 0:
        console.print(f"… and {hidden} more{f' in {table.rest}' * bool(table.rest)}", markup=False)


def _most(console: Console) -> int:
    """Return the widest a table may be: narrower columns would break every word."""
    return console.width * 3 // 2


def _paragraphs(table: Table, console: Console) -> None:
    """Print a table that is too wide row by row, wrapped as text."""
    if table.title:
        console.print(Line(clean(table.title)), style="bold")
    for row in table.rows[: table.first]:
        words = Line(" · ").join([entry for entry in map(_entry, row) if entry.plain])
        first, *continued = words.wrap(console, console.width - 2) or [Line()]
        for line in (first, *(Line("  ") + line for line in continued)):
            line.rstrip()
            console.print(line)


def _entry(entry: Entry) -> Line:
    return Line("\n").join([line(text) for text in texts(entry) if text.words])
