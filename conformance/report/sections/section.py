"""Data types for what is shown; `render` converts them to terminal text, Markdown and HTML.

Text is unescaped here; every renderer makes it harmless.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from conformance.report.verdict_styles import LOOKS, Family
from conformance.spec.records import Verdict


@dataclass(frozen=True, slots=True)
class Text:
    """One line of words and their style.

    `symbol` precedes them in the family's shape; `fills` colours the whole table cell. `link` and
    `hint` are for the page, `cell` is the id of a cell to link to, `anchor` names their own place.
    """

    words: str
    family: Family | None = None
    symbol: str = ""
    quiet: bool = False
    tag: str = ""
    link: str = ""
    cell: str = ""
    anchor: str = ""
    hint: str = ""
    fills: bool = False


#: An entry of a table: words, or several lines of them.
Entry: TypeAlias = "str | Text | tuple[str | Text, ...]"


@dataclass(frozen=True, slots=True)
class Heading:
    """The title of a table's column; the entries of a `figure` are numbers, aligned right."""

    title: str
    figure: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of entries under their columns; the first entry of a row is its name.

    `first` rows are shown where space is short, and `rest` says where the others are. On the page,
    `folded` hides the table behind its title, and `peek` rows (0: all) are visible at first.
    """

    columns: tuple[Heading, ...]
    rows: tuple[tuple[Entry, ...], ...]
    title: str = ""
    first: int = 60
    rest: str = ""
    folded: bool = False
    peek: int = 0


@dataclass(frozen=True, slots=True)
class Note:
    """A paragraph."""

    text: str | Text


@dataclass(frozen=True, slots=True)
class Facts:
    """Names and values."""

    pairs: tuple[tuple[str, str], ...]
    title: str = ""


@dataclass(frozen=True, slots=True)
class Code:
    """A command or a program, to be copied."""

    text: str


@dataclass(frozen=True, slots=True)
class Section:
    """Blocks under a title. `id` is the page's anchor."""

    title: str
    blocks: tuple[Block, ...]
    id: str = ""


Block: TypeAlias = "Note | Facts | Code | Table | Section"


@dataclass(frozen=True, slots=True)
class Document:
    """A result: the headline, its inputs (`about`), caveats (`notes`), and the evidence."""

    headline: Text
    about: str
    notes: tuple[str, ...]
    blocks: tuple[Block, ...]


def columns(*titles: str, figures: Sequence[str] = ()) -> tuple[Heading, ...]:
    """Return column headings; those among `figures` are numbers."""
    return tuple(Heading(title, title in figures) for title in titles)


def texts(entry: Entry) -> tuple[Text, ...]:
    """Return the lines of an entry."""
    lines = entry if isinstance(entry, tuple) else (entry,)
    return tuple(Text(line) if isinstance(line, str) else line for line in lines)


def verdict_text(verdict: Verdict, words: str = "", cell: str = "") -> Text:
    """Return the verdict, or these words for it, with its symbol and a link to this cell."""
    look = LOOKS[verdict]
    return Text(words or verdict.value, look.family, look.symbol, cell=cell)
