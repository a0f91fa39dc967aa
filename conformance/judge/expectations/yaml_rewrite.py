"""Edit the list in known.yaml and leave every other byte unchanged.

ruamel.yaml only locates the nodes. A round trip through it would keep comments and order, but
rewrite spaces, quotes and line breaks all over the file.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from textwrap import indent

from ruamel.yaml import YAML
from ruamel.yaml.nodes import CollectionNode, MappingNode, Node, SequenceNode

from conformance.errors import ConformanceError

_INDENT = "  "


class EntryEdits:
    """Edits of one text, by index in the list `known`; `text` applies them together."""

    def __init__(self, text: str, path: Path | None = None) -> None:
        self._text = text if text.endswith("\n") else text + "\n"
        root = YAML(typ="rt").compose(self._text)
        self._key, self._list = _list_of(root)
        self._items: list[Node] = []
        self._edits: list[tuple[int, int, str]] = []
        self._added: list[str] = []
        self._removed = 0
        if isinstance(self._list, SequenceNode):
            self._items = list(self._list.value)
            if self._list.flow_style and self._items:
                raise ConformanceError(
                    "the list is in brackets", path=path, remedy="write one entry a line: - match:"
                )

    def remove(self, index: int) -> None:
        """Remove the entry, and the comment right above it."""
        item = self._items[index]
        dash = self._text.rindex("-", 0, item.start_mark.index)
        start, end = self._text.rindex("\n", 0, dash) + 1, _line_end(self._text, _end(item))
        lines = self._text[:start].splitlines(keepends=True)
        # A comment that is indented less is not the entry's, but the list's.
        comment = r"[ \t]*#" if self._column() == 2 else r"[ \t]+#"
        while lines and re.match(comment, lines[-1]):
            start -= len(lines.pop())
        if self._text.startswith("\n", end):  # one empty line is removed with it
            end += 1
        self._edits.append((start, end, ""))
        self._removed += 1

    def narrow(self, index: int, matches: Sequence[str]) -> None:
        """Set the entry's match to the first of these, and its `also` to the others."""
        item = self._items[index]
        keys = {key.value: (key, value) for key, value in item.value}
        _, match = keys["match"]
        rest = f"[{', '.join(matches[1:])}]" if matches[1:] else ""
        self._edits.append((match.start_mark.index, _end(match), matches[0]))
        flow = isinstance(item, CollectionNode) and bool(item.flow_style)
        if "also" in keys:
            key, value = keys["also"]
            start, end = key.start_mark.index, _end(value)
            if not rest and not flow:
                start, end = self._text.rindex("\n", 0, start) + 1, _line_end(self._text, end)
            self._edits.append((start, end, f"also: {rest or '[]'}" if rest or flow else ""))
        elif rest and flow:
            self._edits.append((_end(match), _end(match), f", also: {rest}"))
        elif rest:
            column = " " * item.start_mark.column
            end = _line_end(self._text, _end(match))
            self._edits.append((end, end, f"{column}also: {rest}\n"))

    def append(self, block: str) -> None:
        """Add an entry at the end of the list."""
        self._added.append(block)

    def text(self) -> str:
        """Return the text with every edit. An emptied list becomes `[]`."""
        edits, colon = list(self._edits), self._text.index(":", _end(self._key)) + 1
        if self._items:
            if self._added:
                end = max(_line_end(self._text, _end(item)) for item in self._items)
                edits.append((end, end, self._indented(" " * (self._column() - 2))))
            elif self._removed == len(self._items):
                edits.append((colon, colon, " []"))
        elif self._added:
            edits.append((colon, _line_end(self._text, colon), "\n" + self._indented(_INDENT)))
        text = self._text
        # From the end: earlier positions stay valid, edits at one position keep their order.
        for start, end, new in sorted(edits, key=lambda edit: edit[:2], reverse=True):
            text = text[:start] + new + text[end:]
        return text

    def _indented(self, by: str) -> str:
        return "".join(f"{indent(block, by)}\n" for block in self._added)

    def _column(self) -> int:
        column: int = self._items[0].start_mark.column
        return column


def _list_of(root: Node | None) -> tuple[Node, Node]:
    if isinstance(root, MappingNode):
        for key, value in root.value:
            if key.value == "known":
                return key, value
    raise ConformanceError("has no list `known`", remedy="add `known: []`")


def _end(node: Node) -> int:
    """Return where a node's text ends, before any comments."""
    if not isinstance(node, CollectionNode) or node.flow_style or not node.value:
        end: int = node.end_mark.index
        return end
    last = node.value[-1]
    return _end(last[1] if isinstance(node, MappingNode) else last)


def _line_end(text: str, place: int) -> int:
    """Return the start of the next line; a block scalar already ends there."""
    if place and text[place - 1] == "\n":
        return place
    return text.index("\n", place) + 1
