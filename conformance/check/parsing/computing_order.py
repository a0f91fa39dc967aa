"""When a value is read, by the text of the function that reads it: a block reads values in the
order in which the model computes them, so that a cause stands before what follows from it.
"""

from __future__ import annotations

import ast
from collections.abc import Callable
from functools import cache
from typing import TypeGuard

from conformance.check.parsing.dataflow import READ, Places
from conformance.records import Site

#: What a value is sorted by: its prompt, then a line and a number for every loop around its read.
Key = tuple[int, ...]

Loop = ast.For | ast.While | ast.With

#: Of what the text does not say, and of what no layer makes: the last.
_LAST = 1 << 30


def computing_order(places: Places) -> Callable[[Site], Key]:
    """The key by which the values of a function are sorted as they are computed."""

    @cache
    def read(name: str) -> tuple[ast.stmt | None, tuple[Loop, ...]]:
        statement = _read(places, name) or _read(places, name.partition("__")[0])
        return statement, () if statement is None else _loops(places, statement)

    def key(site: Site) -> Key:
        statement, loops = read(site.name)
        around = [number for one in loops for number in (one.lineno, _turn(one, site))]
        line = _LAST if statement is None else statement.lineno
        layer = _LAST if site.layer is None else site.layer
        return (site.prompt, *around, line, site.step, layer)

    return key


def _read(places: Places, name: str) -> ast.stmt | None:
    """The last statement of the function itself that a value waits for."""
    own = [
        one
        for one in places.way(name)
        if places.function.lineno < one.lineno <= (places.function.end_lineno or 0)
        and not isinstance(one, ast.Return)
    ]
    reading = [one for one in own if _reads(one)] or own
    return max(reading, key=lambda one: one.lineno, default=None)


def _reads(statement: ast.stmt) -> bool:
    return any(isinstance(n, ast.Attribute) and n.attr in READ for n in ast.walk(statement))


def _loops(places: Places, statement: ast.stmt) -> tuple[Loop, ...]:
    """The loops around a statement, the outermost first; a block over steps is one, too."""
    found = [
        node
        for node in ast.walk(places.function)
        if (isinstance(node, ast.For | ast.While) or _over_steps(node))
        and any(inner is statement for inner in ast.walk(node))
    ]
    return tuple(sorted(found, key=lambda one: one.lineno))


def _over_steps(node: ast.AST) -> TypeGuard[ast.For | ast.With]:
    heads: list[ast.expr] = []
    if isinstance(node, ast.For):
        heads = [node.iter]
    elif isinstance(node, ast.With):
        heads = [one.context_expr for one in node.items]
    return any(".iter" in ast.unparse(one) for one in heads)


def _turn(loop: Loop, site: Site) -> int:
    """In which of its turns a loop reads a value: over the steps, or over layers."""
    return site.step if site.layer is None or _over_steps(loop) else site.layer
