"""The line of a user's file at which an engine's traceback says that it failed."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance.records import Outcome, Status


def find_line(outcome: Outcome, text: str, name: str) -> int:
    """Return the innermost line of the file called `name` that an outcome names, 0 for none."""
    return next(iter(find_lines(outcome, text, name)), 0)


def find_lines(outcome: Outcome, text: str, name: str) -> tuple[int, ...]:
    """Return the lines of the file called `name` that an outcome names, the innermost first.

    A worker that hung was asked for its stacks, whose innermost frame comes first.
    """
    detail = f"{outcome.reason}\n{outcome.detail}"
    if outcome.status is Status.TIMEOUT:
        place = rf'(?:[^"]*{re.escape(name)}|<(?:edit|nnsight)[^">]*>)'
        numbers = map(int, re.findall(rf'File "{place}", line (\d+) in ', detail))
        return tuple(number for number in numbers if number <= text.count("\n") + 1)
    place = rf'(?:[^"]*{re.escape(name)}|<[^">]+>)'
    frames = re.findall(rf'File "{place}", line (\d+), in [^\n]+\n *([^\n]*)', detail)
    shown: dict[str, list[int]] = {}
    for line, words in _shown(text):
        shown.setdefault(words, []).append(line)
    return tuple(
        dict.fromkeys(
            min(lines, key=lambda line: abs(line - int(number)))
            for number, words in reversed(frames)
            if (lines := shown.get(_bare(words)))
        )
    )


def _shown(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line of a file with the words by which a traceback may show it.

    nnsight runs a block under a name of its own, written anew from its syntax tree: a statement of
    several lines is one there, without comments and with single quotes.
    """
    for number, line in enumerate(text.splitlines(), 1):
        if _bare(line):
            yield number, _bare(line)
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.stmt):
            yield node.lineno, _bare(ast.unparse(node).partition("\n")[0])


def _bare(text: str) -> str:
    return text.partition("#")[0].strip()
