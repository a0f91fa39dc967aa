"""What a write's value is made of, where `hf` makes it of another module of the same kind. Found in
the text: the write is right, and what it writes was read somewhere else.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Access, Places

#: How many variables a module's name is followed through.
_HOPS = 4


@dataclass(frozen=True)
class _Module:
    """A module as the text names it, on its line."""

    text: str
    line: int


def other_sources(places: Places, write: Access) -> list[Finding]:
    """The reads behind a write in `vllm` of which `hf` has another layer or part in the place."""
    if not places.file.ported:
        return []
    theirs = Places(places.file, "hf", dual=False)
    own = [one for one in theirs.writes() if _kind(_tail(one)) == _kind(_tail(write))]
    if len(own) != 1:
        return []
    mine, meant = _behind(places, write), _behind(theirs, own[0])
    texts = {one.text for one in mine}
    found: list[Finding] = []
    for one in mine:
        others = [each for each in meant if _kind(each.text) == _kind(one.text)]
        right = [each for each in others if each.text not in texts]
        if len({each.text for each in right}) != 1 or len(others) > len(right):
            continue
        other = right[min(len(found), len(right) - 1)]
        words = (
            f"line {one.line} reads `{one.text}`, and line {other.line} of `hf` `{other.text}`; "
            f"line {write.line} writes what comes of it"
        )
        found.append(Finding("other-value", words, edit=_edit(places, one, other)))
    return found


def _edit(places: Places, one: _Module, other: _Module) -> Edit:
    before = places.file.line(one.line)
    named = {n.id for n in ast.walk(ast.parse(other.text)) if isinstance(n, ast.Name)}
    there = {n.id for n in ast.walk(places.function) if isinstance(n, ast.Name)}
    once = before.count(one.text) == 1 and named <= there | {places.function.args.args[0].arg}
    return Edit(one.line, before, before.replace(one.text, other.text) if once else "")


def _tail(access: Access) -> str:
    return access.module.rpartition(".")[2]


def _kind(module: str) -> str:
    """A module's name without the numbers of layers in it."""
    return re.sub(r"\[[^\[\]]*\]", "[]", module)


def _behind(places: Places, write: Access) -> list[_Module]:
    """The modules whose values the value of a write is made of, each once a line."""
    way = [one for one in places.way_to(write) if one is not write.statement]
    every = [
        access
        for statement in way
        for access in places.accesses(statement)
        if access.node is not write.node  # where it writes to
    ]
    modules = (_named(places, access.module, access.statement, _HOPS) for access in every)
    return list(dict.fromkeys(one for one in modules if one is not None))


def _named(places: Places, module: str, near: ast.stmt, hops: int) -> _Module | None:
    """A module as it is named where it is taken from the model."""
    root, dot, rest = module.partition(".")
    if "[" in module or not hops:
        return _Module(module, near.lineno) if "[" in module else None
    made = places.scopes.binding(root, near)
    value = statements.value_of(made) if made is not None else None
    if made is None or not isinstance(value, (ast.Attribute, ast.Subscript, ast.Name)):
        return None
    found = _named(places, places.file.segment(value), made, hops - 1)
    return found if found is None or not dot else _Module(f"{found.text}.{rest}", found.line)
