"""Weights and modules that are used outside of a trace: on vLLM the model lives in another process,
and where the function runs there is its form without its numbers.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from conformance.check.advice.edits import Edit
from conformance.check.parsing.dataflow import VALUES, Places
from conformance.check.parsing.scopes import numbers_in

#: Why such a line means nothing there.
AWAY = (
    "outside of a trace there are no weights on vLLM: the model lives in another process, and what "
    "is there in its place has their shapes and not their numbers"
)

#: What mends it.
INSIDE = f"{AWAY}. Take it in the block where it is used, and save what comes of it"

_WEIGHTS = frozenset({"weight", "bias"})

#: Modules that are called with a value.
_CALLED = r"(?:norm\w*|ln_\w+|lm_head|embed_\w+|wte|mlp|self_attn|attn|\w+_proj|layers\[.*\])$"

_OPENS = frozenset({"trace", "generate", "invoke", "session", "edit"})


def outside(places: Places) -> list[tuple[ast.stmt, Edit]]:
    """The statements that use a weight, or call a part of the model, where no trace is open."""
    if not places.file.ported:
        return []
    inside = _inside(places)
    return [
        (statement, Edit(line, places.file.line(line), "", INSIDE))
        for statement in places.scopes.statements
        if statement not in inside and not hasattr(statement, "body")
        for line in list(_uses(places, statement))[:1]
    ]


def behind(places: Places, name: str) -> Edit | None:
    """The first of them on the way to a value."""
    way = places.way(name)
    return next((edit for statement, edit in outside(places) if statement in way), None)


def _inside(places: Places) -> set[ast.stmt]:
    """The statements of blocks, and of the helpers that are called in blocks alone."""
    found: set[ast.stmt] = set()
    for root in places.scopes.roots:
        for block in ast.walk(root):
            if isinstance(block, ast.With) and any(map(_opens, block.items)):
                found |= {one for one in ast.walk(block) if isinstance(one, ast.stmt)}
    for helper in places.scopes.helpers.values():
        calls = [
            places.scopes.statement_of(one)
            for one in places.scopes.nodes()
            if isinstance(one, ast.Name) and one.id == helper.name
        ]
        if all(call in found for call in calls):
            found |= {one for one in ast.walk(helper) if isinstance(one, ast.stmt)}
    return found


def _opens(item: ast.withitem) -> bool:
    opened = item.context_expr.func if isinstance(item.context_expr, ast.Call) else None
    return isinstance(opened, ast.Attribute) and opened.attr in _OPENS


def _uses(places: Places, statement: ast.stmt) -> Iterator[int]:
    """The lines of a statement on which it uses one's numbers: its shape is the same there."""
    for node in numbers_in(statement):
        used: ast.expr | None = None
        if isinstance(node, ast.Attribute) and node.attr in _WEIGHTS:
            used = node.value
        elif isinstance(node, ast.Call) and re.search(_CALLED, ast.unparse(node.func)):
            used = node.func
        if isinstance(node, ast.expr) and used and _of_the_model(places, used, statement):
            yield node.lineno


def _of_the_model(places: Places, value: ast.expr, near: ast.stmt) -> bool:
    """Is it a part of the model, by its path, or by the name that it is bound to? A value that a
    part gave is none.
    """
    root = value
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        if isinstance(root, ast.Attribute) and root.attr in VALUES:
            return False
        root = root.value
    if not isinstance(root, ast.Name):
        return False
    functions = [places.function, *places.scopes.helpers.values()]
    if root.id in {one.args.args[0].arg for one in functions if one.args.args}:
        return True
    made = places.scopes.binding(root.id, near)
    return isinstance(made, ast.Assign) and made is not near and _path(places, made)


def _path(places: Places, made: ast.Assign) -> bool:
    path = isinstance(made.value, (ast.Attribute, ast.Subscript))
    return path and _of_the_model(places, made.value, made)
