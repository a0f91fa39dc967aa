"""A write, or what it writes to, that stands above the loop over the steps: it is made, or read, in
the first step alone. The lines go into the loop.
"""

from __future__ import annotations

import ast
from collections.abc import Collection

from conformance.check.advice.edits import Edit
from conformance.check.parsing import statements, steps
from conformance.check.parsing.dataflow import Access, Places


def above_the_loop(places: Places, write: Access) -> Edit | None:
    """The write that is made in the first step alone, or one in the loop that changes what was read
    above it; None where it is neither.
    """
    roots = places.scopes.roots
    if steps.first_alone(roots, write.statement):
        loop = steps.following_loop(roots, write.statement)
        why = "this stands in no loop over the steps, so it is made in step 0 alone"
        moved = _above(places, write, write.statement)
        edit = _moved(places, loop, [*moved, write.statement], why) if loop is not None else None
        return edit or Edit(write.line, places.file.line(write.line), "", why)
    loop = steps.loop_around(roots, write.statement)
    read = _above(places, write, loop) if loop is not None else []
    if loop is None or not read or any(one in ast.walk(loop) for one in read):
        return None
    line = read[0].lineno
    why = (
        f"what line {write.line} writes to is read above the loop over the steps, in step 0 alone: "
        "read it in every step"
    )
    return _moved(places, loop, read, why) or Edit(line, places.file.line(line), "", why)


def _above(places: Places, write: Access, near: ast.stmt) -> list[ast.stmt]:
    """The statements beside one that bind, of the model's values, what a write changes."""
    target = statements.target(write.statement)
    names = [one.id for one in ast.walk(target or write.node) if isinstance(one, ast.Name)]
    made = [places.scopes.binding(name, write.statement) for name in names]
    return [one for one in made if one is not None and places.accesses(one) and one is not near]


def _moved(
    places: Places, loop: ast.For | ast.With, moved: Collection[ast.stmt], why: str
) -> Edit | None:
    """The lines from the first of these statements to a loop's head, with the statements behind it
    as the first of the loop; None where they do not stand in lines of their own above it.
    """
    first, head = min(one.lineno for one in moved), loop.lineno
    own = {n for one in moved for n in range(one.lineno, (one.end_lineno or one.lineno) + 1)}
    inner = loop.body[0]
    plain = all(isinstance(one, (ast.Assign, ast.AugAssign, ast.Expr)) for one in moved)
    if not plain or max(own) >= head or inner.lineno != head + 1:
        return None
    outer = {one.col_offset for one in (*moved, loop)}
    if len(outer) != 1 or _between(places, first, head) - own:
        return None
    lines = {number: places.file.line(number) for number in range(first, head + 1)}
    further = " " * (inner.col_offset - loop.col_offset)
    after = [lines[number] for number in lines if number not in own]
    after += [further + lines[number] for number in sorted(own)]
    return Edit(first, "\n".join(lines.values()), "\n".join(after), why)


def _between(places: Places, first: int, head: int) -> set[int]:
    """The lines in between of which other statements use what the block makes; comments stay."""
    return {
        number
        for one in places.scopes.statements
        if first <= one.lineno < head and not hasattr(one, "body")
        for number in range(one.lineno, (one.end_lineno or one.lineno) + 1)
    }
