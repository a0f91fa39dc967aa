"""Blocks as nnsight sends them to an engine: written anew from their syntax tree.

The first statement of a block keeps its line. Those below it stand where they end up without
comments, blank lines and line breaks, and in other words: a statement of several lines is one
there, quotes are single. So a line of theirs is looked up by what the whole block becomes.
"""

from __future__ import annotations

import ast

#: A syntax tree's node that has a place in the text.
_Placed = ast.expr | ast.stmt


def line_of(text: str, number: int, shown: str, marked: tuple[int, int] = (0, 0)) -> int | None:
    """The line of a file's text that a traceback shows as this line of a block, where the columns
    `marked` of it are what failed; None where no block of the file has it there.
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
            return _original(_placed(own), _placed(ast.parse(sent)), at + 1, columns)
    return None


def _placed(tree: ast.Module) -> list[_Placed]:
    return [one for one in ast.walk(tree) if isinstance(one, (ast.expr, ast.stmt))]


def _original(
    own: list[_Placed], sent: list[_Placed], number: int, columns: list[tuple[int, int]]
) -> int | None:
    """Where in the file stands what a sent block has in some of these columns of a line, or else
    where the innermost statement of that line begins.
    """
    if list(map(type, own)) != list(map(type, sent)):
        return None
    pairs = list(zip(own, sent, strict=True))
    for node, copied in pairs:
        within = (copied.col_offset, copied.end_col_offset) in columns
        if within and copied.lineno == number and isinstance(node, ast.expr):
            # Of `module.part.name` over several lines it is the name that is not there.
            return (node.end_lineno if isinstance(node, ast.Attribute) else None) or node.lineno
    inside = [
        (copied.lineno, node.lineno)
        for node, copied in pairs
        if isinstance(node, ast.stmt)
        and copied.lineno <= number <= (copied.end_lineno or copied.lineno)
    ]
    return max(inside)[1] if inside else None
