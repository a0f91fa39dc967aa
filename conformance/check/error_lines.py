"""The line of a user's file at which an engine's traceback says that it failed."""

from __future__ import annotations

import re
from collections.abc import Iterator

from conformance.check.sent_blocks import line_of
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
    return tuple(dict.fromkeys(_lines(detail, text, name)))


def _lines(detail: str, text: str, name: str) -> Iterator[int]:
    """Yield the file's lines in a traceback, the last one first.

    nnsight runs a block under a name of its own, with the numbers of the lines on which it stands
    and their text below, both as it sent them.
    """
    place = rf'(?:[^"]*{re.escape(name)}|<[^">]+>)'
    frame = rf'File "({place})", line (\d+), in [^\n]+\n( *)([^\n]*)(?:\n([ ~^]+)$)?'
    lines = text.splitlines()
    for found in reversed(list(re.finditer(frame, detail, re.MULTILINE))):
        file, number, indent, shown, marks = found.groups(default="")
        if file.startswith("<"):
            start = len(marks) - len(marks.lstrip()) - len(indent)
            marked = (start, len(marks.rstrip()) - len(indent))
            sent = line_of(text, int(number), shown, marked)
            if sent is not None:
                yield sent
                continue
        near = [n for n, line in enumerate(lines, 1) if _bare(line) == _bare(shown)]
        if near:
            yield min(near, key=lambda n: abs(n - int(number)))


def _bare(text: str) -> str:
    return text.partition("#")[0].strip()
