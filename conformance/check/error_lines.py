"""The line of a user's file at which an engine's traceback says that it failed.

nnsight runs a block under a name of its own, written anew from its syntax tree: the first statement
keeps its line, those below it stand without comments, blank lines and line breaks, with single
quotes. A line of theirs is looked up by what the whole block becomes.
"""

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
    return tuple(dict.fromkeys(_lines(detail, text, name)))


def _lines(detail: str, text: str, name: str) -> Iterator[int]:
    """Yield the file's lines in a traceback, the last one first."""
    place = rf'(?:[^"]*{re.escape(name)}|<[^">]+>)'
    frame = rf'File "({place})", line (\d+), in [^\n]+\n( *)([^\n]*)(?:\n([ ~^]+)$)?'
    for found in reversed(list(re.finditer(frame, detail, re.MULTILINE))):
        file, number, indent, shown, marks = found.groups(default="")
        if file.startswith("<"):
            start = len(marks) - len(marks.lstrip()) - len(indent)
            marked = (start, len(marks.rstrip()) - len(indent))
            if sent := _line_of_sent(text, int(number), shown, marked):
                yield sent
                continue
        lines = enumerate(text.splitlines(), 1)
        near = [at for at, line in lines if _bare(line) == _bare(shown)]
        if near:
            yield min(near, key=lambda at: abs(at - int(number)))


def _bare(text: str) -> str:
    return text.partition("#")[0].strip()


def _line_of_sent(text: str, number: int, shown: str, marked: tuple[int, int]) -> int:
    """The line of a file's text that is shown as this line of a block, of which the columns
    `marked` are what failed; 0 where no block of the file has it there.
    """
    for block in ast.walk(ast.parse(text)):
        if not isinstance(block, (ast.With, ast.AsyncWith)):
            continue
        own = ast.Module(body=block.body, type_ignores=[])
        sent = ast.unparse(own)
        lines = sent.splitlines()
        at = number - block.body[0].lineno
        if 0 <= at < len(lines) and lines[at].strip() == shown.strip():
            indent = len(lines[at]) - len(lines[at].lstrip())
            # Below a last line, which has no end of its own, Python before 3.13 marks a column too
            # far. No two parts of an expression are apart by that, as they lie in each other.
            begins = (indent, indent - 1) if at == len(lines) - 1 else (indent,)
            columns = [(marked[0] + begin, marked[1] + begin) for begin in begins]
            return _original(own, ast.parse(sent), at + 1, columns)
    return 0


def _original(
    own: ast.Module, sent: ast.Module, number: int, columns: list[tuple[int, int]]
) -> int:
    """Where in the file stands what a sent block has in some of these columns of a line, or else
    where the innermost statement of that line begins.
    """
    statement = 0
    for node, copied in zip(ast.walk(own), ast.walk(sent), strict=False):
        if type(node) is not type(copied):
            return 0
        if isinstance(node, ast.expr) and isinstance(copied, ast.expr):
            within = (copied.col_offset, copied.end_col_offset) in columns
            if within and copied.lineno == number:
                # Of `module.part.name` over several lines it is the name that is not there.
                return (node.end_lineno if isinstance(node, ast.Attribute) else 0) or node.lineno
        elif (
            isinstance(node, ast.stmt)
            and isinstance(copied, ast.stmt)
            and copied.lineno <= number <= (copied.end_lineno or copied.lineno)
        ):
            statement = node.lineno  # the innermost comes last
    return statement
