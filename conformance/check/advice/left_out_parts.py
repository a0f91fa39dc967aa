"""A part of the model that `hf` computes a value with, and `vllm` does not, or the other way round:
a logit lens without the final norm is the usual one.
"""

from __future__ import annotations

import ast
from dataclasses import dataclass

from conformance.check.advice.edits import Edit, replaced
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import VALUES, Places


@dataclass(frozen=True)
class LeftOut:
    """In words, and the line of `vllm` to mend."""

    words: str
    edit: Edit


@dataclass(frozen=True)
class _Call:
    """A part of the model that is called: its name, and the same as it is written."""

    name: str
    module: str
    node: ast.Call


def left_out(places: Places, name: str) -> LeftOut | None:
    """What one of the two functions alone does on the way to a value."""
    if not places.file.ported:
        return None
    theirs = Places(places.file, "hf", dual=False)
    mine, meant = _calls(places, name), _calls(theirs, name)
    for call in meant:
        if call.name not in _named(places, name):
            return _lacks(places, name, call, theirs)
    for call in mine:
        if call.name not in _named(theirs, name):
            words = f"`vllm` computes it with `{call.module}`, and `hf` does not"
            argument = places.file.segment(call.node.args[0])
            after = replaced(places, call.node, argument)
            return LeftOut(words, Edit(call.node.lineno, places.file.line(call.node.lineno), after))
    return None


def _calls(places: Places, name: str) -> list[_Call]:
    """The parts of the model that are called with a value on the way to this name."""
    calls = []
    for part in places.parts(name):
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
                module = _module(places, node.func)
                if module:
                    calls.append(_Call(module.rpartition(".")[2], module, node))
    return calls


def _module(places: Places, called: ast.expr) -> str:
    """A part of the model as it is written, also where a variable holds it; "" for all else."""
    if isinstance(called, ast.Name):
        value = _held(places, called)
        return _module(places, value) if isinstance(value, ast.Attribute) else ""
    root: ast.expr = called
    while isinstance(root, (ast.Attribute, ast.Subscript)):
        root = root.value
    functions = [places.function, *places.scopes.helpers.values()]
    models = {argument.arg for function in functions for argument in function.args.args}
    inside = isinstance(called, ast.Attribute) and getattr(root, "id", "") in models
    return ast.unparse(called) if inside else ""


def _held(places: Places, variable: ast.Name) -> ast.expr | None:
    """What a variable holds that is made once."""
    made = places.assigned.get(variable.id, [])
    return statements.value_of(made[0]) if len(made) == 1 else None


def _named(places: Places, name: str) -> set[str]:
    """Every attribute that is named on the way to a value: called, read, or its weight taken."""
    attributes = {
        node.attr
        for part in places.parts(name)
        for node in ast.walk(part)
        if isinstance(node, ast.Attribute)
    }
    return attributes | {call.name for call in _calls(places, name)}


def _lacks(places: Places, name: str, call: _Call, theirs: Places) -> LeftOut | None:
    """The line of `vllm` that goes on with what should have gone through this part."""
    words = f"`hf` computes it with `{call.module}`, line {call.node.lineno}, and `vllm` without it"
    others = _named(theirs, name) & _named(places, name)
    parts = places.parts(name)
    for part in parts:
        for node in ast.walk(part):
            given = _given_to(places, node, others - VALUES)
            if given is not None:
                after = replaced(places, given, f"{call.module}({places.file.segment(given)})")
                return LeftOut(words, Edit(given.lineno, places.file.line(given.lineno), after))
    statement = places.origin(name)
    if statement is None:
        return None
    return LeftOut(words, Edit(statement.lineno, places.file.line(statement.lineno)))


def _given_to(places: Places, node: ast.AST, names: set[str]) -> ast.expr | None:
    """What is multiplied with the weights of a part with such a name, or given to it."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left if _has(places, node.right, names) else None
    if isinstance(node, ast.Call) and node.args:
        own = _module(places, node.func).rpartition(".")[2] in names
        weighs = own or any(_has(places, one, names) for one in node.args[1:])
        return node.args[0] if weighs else None
    return None


def _has(places: Places, node: ast.AST, names: set[str]) -> bool:
    """Is a part of the model with such a name in it, or in what a variable in it holds?"""
    for one in ast.walk(node):
        if isinstance(one, ast.Attribute) and one.attr in names and _module(places, one):
            return True
        held = _held(places, one) if isinstance(one, ast.Name) else None
        if isinstance(held, ast.Attribute) and _has(places, held, names):
            return True
    return False
