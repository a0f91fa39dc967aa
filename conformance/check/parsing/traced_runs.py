"""Which trace of a function ran a sequence: counted by the text, where that says how many it is."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import takewhile

from conformance.check.parsing.scopes import Scopes

#: The methods that open a trace.
_OPENS = frozenset({"trace", "generate"})


@dataclass(frozen=True)
class _Trace:
    """A block that opens a trace; `once` says that it is run once, for one prompt."""

    block: ast.With
    once: bool


def traces(scopes: Scopes, module: ast.Module) -> list[ast.With]:
    """The blocks of a function that open a trace, in the order of the text; [] where one is opened
    in another way, or by a helper.
    """
    return [one.block for one in _traces(scopes, module)]


def single(scopes: Scopes, module: ast.Module, block: ast.With) -> bool:
    """Is a block that opens a trace run once, for one prompt?"""
    return any(one.once for one in _traces(scopes, module) if one.block is block)


def trace_of(scopes: Scopes, module: ast.Module, number: int, total: int) -> ast.With | None:
    """The block in which the sequence of this number was run, of so many; None where the text does
    not tell. A loop in between runs its own as often as it does: they are counted from both ends.
    """
    every = _traces(scopes, module)
    before = list(takewhile(lambda one: one.once, every))
    rest = every[len(before) :]
    after = list(takewhile(lambda one: one.once, reversed(rest)))
    between = rest[: len(rest) - len(after)]
    if not every or total < len(before) + len(after) or (not between and total != len(every)):
        return None
    if number < len(before):
        return before[number].block
    if total - number <= len(after):
        return after[total - number - 1].block
    return between[0].block if len(between) == 1 else None


def _traces(scopes: Scopes, module: ast.Module) -> list[_Trace]:
    function = scopes.function
    if not isinstance(function, ast.FunctionDef) or len(function.args.args) > 1:
        return []  # it is called for every prompt, or for all of them
    given = [each for one in (*module.body, *scopes.statements) for each in _bound(one)]
    texts = {name.id for name, value in given if _is_text(value)}
    texts -= {name.id for name, value in given if not _is_text(value)}
    found = list(_within(function.body, texts, once=True))
    opened = [node for node in scopes.nodes() if _opens(node)]
    return found if len(opened) == len(found) else []


def _bound(statement: ast.stmt) -> Iterator[tuple[ast.Name, ast.expr]]:
    """The variables that an assignment gives values to, each with its own."""
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1:
        return
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    yield from ((name, given) for name, given in pairs if isinstance(name, ast.Name))


def _within(body: Sequence[ast.stmt], texts: set[str], *, once: bool) -> Iterator[_Trace]:
    for one in body:
        if isinstance(one, ast.FunctionDef):
            continue
        heads = [item.context_expr for item in one.items] if isinstance(one, ast.With) else []
        opened = [head for head in heads if isinstance(head, ast.Call) and _opens(head)]
        if isinstance(one, ast.With) and len(opened) == 1:
            prompt = next(iter(opened[0].args), None)
            single = _is_text(prompt) or (isinstance(prompt, ast.Name) and prompt.id in texts)
            yield _Trace(one, once and single)
            continue
        sure = once and isinstance(one, ast.With)
        for field in ("body", "orelse", "finalbody"):
            yield from _within(getattr(one, field, None) or [], texts, once=sure)


def _is_text(value: ast.expr | None) -> bool:
    constant = isinstance(value, ast.Constant) and isinstance(value.value, str)
    return constant or isinstance(value, ast.JoinedStr)


def _opens(node: ast.AST) -> bool:
    method = node.func if isinstance(node, ast.Call) else None
    return isinstance(method, ast.Attribute) and method.attr in _OPENS
