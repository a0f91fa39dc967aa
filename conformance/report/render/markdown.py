"""Render sections as Markdown, for a CI summary or an issue. A run's text is escaped."""

from __future__ import annotations

import html
import re
from collections.abc import Iterator, Sequence

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
from conformance.spec.shortening import clip

_WORDS = 300
_SPECIAL = re.compile(r"([\\`*_{}\[\]|#~])")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def plain(text: str) -> str:
    """Escape a run's text as a single line without Markdown syntax."""
    words = _CONTROL.sub("\N{REPLACEMENT CHARACTER}", clip(text, _WORDS))
    return _SPECIAL.sub(r"\\\1", html.escape(words, quote=False))


def document(page: Document) -> str:
    """Render a document, the headline first."""
    symbol = f"{page.headline.symbol} " if page.headline.symbol else ""
    lines = [f"## {symbol}{plain(page.headline.words)}", "", plain(page.about), ""]
    lines += [f"> {plain(note)}" for note in page.notes]
    return "\n".join([*lines, *_blocks(page.blocks)]) + "\n"


def _blocks(blocks: Sequence[Block]) -> Iterator[str]:
    for block in blocks:
        match block:
            case Section():
                yield from ("", f"### {plain(block.title)}")
                yield from _blocks(block.blocks)
            case Note():
                yield from ("", _entry(block.text))
            case Facts():
                yield ""
                yield from (f"- {plain(name)}: {plain(value)}" for name, value in block.pairs)
            case Code():
                yield from ("", "```sh", block.text.replace("```", ""), "```")
            case Table():
                yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    if table.title:
        yield from ("", f"### {plain(table.title)}")
    yield ""
    yield f"| {' | '.join(plain(column.title) for column in table.columns)} |"
    yield "|---" * len(table.columns) + "|"
    for row in table.rows[: table.first]:
        yield f"| {' | '.join(map(_entry, row))} |"
    hidden = len(table.rows) - table.first
    if hidden > 0:
        yield from ("", f"… and {hidden} rows more{f', in {table.rest}' * bool(table.rest)}")


def _entry(entry: Entry) -> str:
    return "; ".join(_text(text) for text in texts(entry) if text.words)


def _text(text: Text) -> str:
    words = plain(text.words)
    if text.link.startswith("https://"):
        words = f"[{words}]({text.link})"
    return f"**{words}** ({plain(text.tag)})" if text.tag else words
