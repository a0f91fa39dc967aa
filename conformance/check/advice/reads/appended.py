"""A list to which the blocks of several prompts append: vLLM brings home one block's entries."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.parsing.dataflow import Places
from conformance.check.parsing.returned_expressions import every_returned

_FILLS = frozenset({"append", "extend"})


def appended(places: Places) -> list[Finding]:
    """The lists that are made outside of the blocks of several prompts, filled in these, and not
    returned themselves: what is made of them has one prompt's entries.
    """
    returned = {one.id for one in every_returned(places.scopes) if isinstance(one, ast.Name)}
    found: dict[str, Finding] = {}
    for name, line in _filled(places):
        if name in returned or name in found:
            continue
        words = (
            f"the blocks of several prompts append to `{name}` in line {line}: vLLM brings home "
            "one block's entries, so that what is made of it has those alone. Make it a dict, or "
            "as long as it gets, and put each value at its prompt's key or index"
        )
        found[name] = Finding("appended", words, edit=Edit(line, places.file.line(line)))
    return list(found.values())


def _filled(places: Places) -> Iterator[tuple[str, int]]:
    """The variables that the blocks of several prompts append to, and where."""
    blocks = [node for node in places.scopes.nodes() if _invokes(node)]
    loops = [node for node in places.scopes.nodes() if isinstance(node, ast.For)]
    for block in blocks:
        several = len(blocks) > 1 or any(block in ast.walk(loop) for loop in loops)
        made = {one.id for one in ast.walk(block) if isinstance(one, ast.Name) and _stored(one)}
        for node in ast.walk(block) if several else ():
            method = node.func if isinstance(node, ast.Call) else None
            if isinstance(method, ast.Attribute) and method.attr in _FILLS:
                filled = method.value
                if isinstance(filled, ast.Name) and filled.id not in made:
                    yield filled.id, method.lineno


def _invokes(node: ast.AST) -> bool:
    """Is it the block of one prompt among those of a trace?"""
    if not isinstance(node, ast.With):
        return False
    heads = [item.context_expr for item in node.items]
    methods = [head.func for head in heads if isinstance(head, ast.Call)]
    return any(isinstance(one, ast.Attribute) and one.attr == "invoke" for one in methods)


def _stored(name: ast.Name) -> bool:
    return isinstance(name.ctx, ast.Store)
