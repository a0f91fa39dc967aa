"""Statements that write into the model's own memory where a new value is meant: what `hf` computes
without a write, made so.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence

import torch

from conformance.check.advice.edits import Edit, is_layer
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Access, Places

#: Expressions that an operator beside them would take apart.
_LOOSE = (ast.BinOp, ast.BoolOp, ast.Compare, ast.IfExp, ast.Lambda)


def new_value(places: Places, write: Access) -> Edit | None:
    """The line of a write, with the edit that makes a value of its own; None where `hf` writes, but
    of the one write under a name beside those that `hf` makes.
    """
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    meant = [] if theirs is None else [one for one in theirs.writes() if _arrives(theirs, one)]
    if theirs is None or (meant and not _beside(places, write, meant)):
        return None
    before = places.file.line(write.line)
    named = _named(places, write)
    if named is None:
        why = f"{_what(write.statement)} writes into what the model goes on with"
        bound = isinstance(write.statement, ast.Assign) and _method(write.statement) is not None
        return Edit(write.line, before, _anew(places, write.statement, "") if bound else "", why)
    root, made = named
    why = (
        f"{_what(write.statement)} writes into the live buffer that `{root}` is bound to, line "
        f"{made.lineno}, and the model goes on with it: make a new value"
    )
    after = _anew(places, write.statement, root)
    pair = write.index is None and places.dual and is_layer(write)
    if not after and not pair and before.strip().startswith(root):
        indent = before[: len(before) - len(before.lstrip())]
        after = f"{indent}{root} = {root}.clone()\n{before}"
    return Edit(write.line, before, after, why)


def _beside(places: Places, write: Access, meant: Sequence[Access]) -> bool:
    """Is a write the only one that changes a variable itself, beside as many others as `hf` has, of
    which none does?
    """
    every = places.writes()
    named = [one for one in every if isinstance(_target(one.statement), ast.Name)]
    alone = len(named) == 1 and named[0].statement is write.statement
    others = any(isinstance(_target(one.statement), ast.Name) for one in meant)
    return alone and not others and len(every) - 1 >= len(meant)


def _arrives(places: Places, write: Access) -> bool:
    """Is what a write changes the model's own, and no copy?"""
    named = _named(places, write)
    return named is None or places.live(named[0], write.statement)


def _named(places: Places, write: Access) -> tuple[str, ast.stmt] | None:
    """The variable that a write changes, and the statement that binds it; None where the write
    names the module's value itself.
    """
    target = _target(write.statement)
    if target is None or any(node is write.node for node in ast.walk(target)):
        return None
    root = next((one.id for one in ast.walk(target) if isinstance(one, ast.Name)), "")
    made = places.scopes.binding(root, write.statement)
    return (root, made) if made is not None else None


def _target(statement: ast.stmt) -> ast.expr | None:
    within = statements.in_place_within(statement)
    return within.value if within is not None else statements.target(statement)


def _what(statement: ast.stmt) -> str:
    """What of a statement writes, in words."""
    method = _method(statement)
    if method is not None:
        return f"`.{method.attr}()`"
    if isinstance(statement, ast.AugAssign):
        return f"`{_sign(statement)}=`"
    return "a value that is assigned to an index"


def _method(statement: ast.stmt) -> ast.Attribute | None:
    """The method that changes its object."""
    alone = isinstance(statement, ast.Expr) and statements.in_place(statement)
    call = statement.value if isinstance(statement, ast.Expr) and alone else None
    method = call.func if isinstance(call, ast.Call) else None
    return method if isinstance(method, ast.Attribute) else statements.in_place_within(statement)


def _sign(statement: ast.AugAssign) -> str:
    text = ast.unparse(ast.BinOp(ast.Name("a"), statement.op, ast.Name("b")))
    return text.removeprefix("a").removesuffix("b").strip()


def _anew(places: Places, statement: ast.stmt, root: str) -> str:
    """The line with a new value in the place of what is changed, "" where one line has none."""
    line, method = places.file.line(statement.lineno), _method(statement)
    if method is not None:
        name = method.attr.removesuffix("_")
        if not hasattr(torch.Tensor, name):
            return ""
        call = f"{places.file.operand(method.value)}.{name}"
        if isinstance(statement, ast.Expr):
            if not isinstance(method.value, ast.Name):
                return ""
            call = f"{root} = {call}"
        return statements.with_node(line, method, call)
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        value = places.file.segment(statement.value)
        value = f"({value})" if isinstance(statement.value, _LOOSE) else value
        text = f"{root} = {root} {_sign(statement)} {value}"
        return statements.with_node(line, statement, text)
    return ""
