"""A part of the model that `hf` computes a value with, and `vllm` does not, or the other way round:
a logit lens without the final norm is the usual one, or one with another module's weights.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.check.advice.edits import Edit, replaced
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import READ, VALUES, Places

#: Names in the path of a call that is none of a part of the model: of what a part gives, say.
_NO_PART = READ | {"tokenizer", "config", "weight", "bias"}

#: What vLLM does not call.
HEADS = frozenset({"lm_head", "embed_out"})


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


@dataclass(frozen=True)
class _Used:
    """A part of the model whose weights a value is computed with: by a call, or taken of it as
    `weight`. `place` is where it is named.
    """

    name: str
    module: str
    place: ast.expr
    called: bool

    @property
    def normed(self) -> bool:
        """Is it a norm? Those are no products."""
        return bool(re.search(r"norm|^ln_", self.name))


def left_out(places: Places, name: str) -> LeftOut | None:
    """What one of the two functions alone does on the way to a value."""
    if not places.file.ported:
        return None
    theirs = Places(places.file, "hf", dual=False)
    other = _other_weights(places, theirs, name)
    if other is not None:
        return other
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
    return _last_alone(places, theirs, name)


def _last_alone(places: Places, theirs: Places, name: str) -> LeftOut | None:
    """That `vllm` computes a value with the last token's logits, and `hf` with none of the model's
    own: what it makes of every token may be meant.
    """
    if any(_logits(theirs, name)):
        return None
    for node in _logits(places, name):
        words = (
            f"`vllm` computes it with `{ast.unparse(node)}`, which is the last token's alone, [1, "
            "vocabulary], and `hf` without it"
        )
        return LeftOut(words, Edit(node.lineno, places.file.line(node.lineno)))
    return None


def _logits(places: Places, name: str) -> Iterator[ast.Attribute]:
    """The logits of the model's own forward that a value is computed with."""
    for part in places.parts(name):
        for node in ast.walk(part):
            if not isinstance(node, ast.Attribute) or not _module(places, node):
                continue
            of_head = isinstance(node.value, ast.Attribute) and node.value.attr in HEADS
            if node.attr == "logits" or (node.attr == "output" and of_head):
                yield node


def _other_weights(places: Places, theirs: Places, name: str) -> LeftOut | None:
    """That `vllm` computes a value with the weights of one part of the model, and `hf` with those
    of another one of its kind.
    """
    mine, meant = _weighing(places, name), _weighing(theirs, name)
    for one in mine:
        if one.name in _named(theirs, name):
            continue
        others = {
            other.module: other
            for other in meant
            if other.name not in _named(places, name) and other.normed == one.normed
        }
        if len(others) != 1:
            continue
        [other] = others.values()
        said = [f"`{each.module}{'' if each.called else '.weight'}`" for each in (other, one)]
        line = other.place.lineno
        words = f"`hf` computes it with {said[0]}, line {line}, and `vllm` with {said[1]}"
        # The head is one that vLLM does not call.
        there = "" if one.called and other.name in HEADS else _rooted(other.module, one.module)
        after = replaced(places, one.place, there)
        return LeftOut(words, Edit(one.place.lineno, places.file.line(one.place.lineno), after))
    return None


def _rooted(module: str, like: str) -> str:
    """A part of the model as it is named where another one is."""
    return f"{like.partition('.')[0]}.{module.partition('.')[2]}"


def _weighing(places: Places, name: str) -> list[_Used]:
    """The parts whose weights a value is computed with, in the order from what is returned back."""
    found = [
        _Used(one.name, one.module, _place(places, one.node.func), called=True)
        for one in _calls(places, name)
    ]
    for part in places.parts(name):
        for node in ast.walk(part):
            if not isinstance(node, ast.Attribute) or node.attr != "weight":
                continue
            module = _module(places, node.value)
            if module:
                place = _place(places, node.value)
                found.append(_Used(module.rpartition(".")[2], module, place, called=False))
    return found


def _place(places: Places, named: ast.expr) -> ast.expr:
    """Where a part is named by its path: there, or where a variable is bound to it."""
    held = _held(places, named) if isinstance(named, ast.Name) else None
    return _place(places, held) if held is not None else named


def _calls(places: Places, name: str) -> list[_Call]:
    """The parts of the model that are called with a value on the way to this name."""
    calls = []
    for part in places.parts(name):
        for node in ast.walk(part):
            if isinstance(node, ast.Call) and len(node.args) == 1 and not node.keywords:
                module = _module(places, node.func)
                if module and not _NO_PART & set(module.replace("[", ".").split(".")):
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
