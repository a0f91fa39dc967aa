"""Which variables may hold something of an activation, whose batch axis is lost on vLLM: by the
text of a function and of its helpers.

The last token's logits are [1, vocabulary] on both sides, and what is made of them alone is alike.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterator

from conformance.check.parsing.scopes import Scopes

#: The last token's logits of a model on transformers, as `ast` writes the indices.
LAST_LOGITS = re.compile(
    r"\.(?:(?:lm_head|embed_out)\.output|output\.logits)"
    r"(?:\[:, -1(?:, :)?\]|\[0, -1(?:, :)?\]|\[0\]\[-1\])"
)

_VALUE = re.compile(r"\.(?:output|inputs?)\b")


def activations(scopes: Scopes, alike: Collection[ast.stmt] = ()) -> frozenset[str]:
    """The names of those variables, and of the helpers that return some. What statements that are
    `alike` bind has no batch axis on transformers either.
    """
    made = [*_made(scopes, alike), *_called(scopes)]
    found: set[str] = set()
    while True:
        more = {name for name, value in made if name not in found and _holds(scopes, value, found)}
        if not more:
            return frozenset(found)
        found |= more


def _holds(scopes: Scopes, value: ast.expr | None, names: set[str]) -> bool:
    """May an activation be in it? None is not known."""
    if value is None or _VALUE.search(LAST_LOGITS.sub("", ast.unparse(value))):
        return True
    return any(
        (isinstance(one, ast.Name) and one.id in names)
        or (isinstance(one, ast.Call) and _elsewhere(scopes, one))
        for one in ast.walk(value)
    )


def _elsewhere(scopes: Scopes, call: ast.Call) -> bool:
    """Is it a call of a function of another file, or of one that is given the model itself?"""
    model = scopes.function.args.args[0].arg
    whole = any(isinstance(one, ast.Name) and one.id == model for one in call.args)
    if not isinstance(call.func, ast.Name):
        return whole
    return call.func.id not in scopes.helpers and not hasattr(builtins, call.func.id)


def _made(scopes: Scopes, alike: Collection[ast.stmt]) -> Iterator[tuple[str, ast.expr | None]]:
    """Every variable with what a statement or a loop gives to it."""
    for name, statements in scopes.assigned.items():
        yield from ((name, _given(each)) for each in statements if each not in alike)
    for node in scopes.nodes():
        if isinstance(node, (ast.For, ast.comprehension)):
            targets = [one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)]
            yield from ((name, node.iter) for name in targets)
        elif isinstance(node, ast.NamedExpr):
            yield node.target.id, node.value
        elif isinstance(node, ast.Lambda):
            yield from ((one.arg, None) for one in node.args.args)


def _called(scopes: Scopes) -> Iterator[tuple[str, ast.expr | None]]:
    """Every helper with what it returns, and its parameters with what it is called with."""
    for helper in scopes.helpers.values():
        yield from ((helper.name, one.value) for one in scopes.returns(helper) if one.value)
        yield from _parameters(scopes, helper)


def _given(statement: ast.stmt) -> ast.expr | None:
    """What a statement gives to the variables that it fills."""
    if isinstance(statement, (ast.Assign, ast.AnnAssign, ast.AugAssign)):
        return statement.value
    return statement.value if isinstance(statement, ast.Expr) else None


def _parameters(scopes: Scopes, helper: ast.FunctionDef) -> Iterator[tuple[str, ast.expr | None]]:
    """What the calls of a helper give to its parameters; all of it is unknown where it is also
    handed on by its name.
    """
    names = [one.arg for one in (*helper.args.posonlyargs, *helper.args.args)]
    calls = [
        node
        for node in scopes.nodes()
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id == helper.name
    ]
    named = [one for one in scopes.nodes() if isinstance(one, ast.Name) and one.id == helper.name]
    plain = all(not isinstance(one, ast.Starred) for call in calls for one in call.args)
    if len(named) != len(calls) or not plain:
        yield from ((name, None) for name in names)
        return
    for call in calls:
        yield from zip(names, call.args, strict=False)
        yield from ((one.arg, one.value) for one in call.keywords if one.arg)
