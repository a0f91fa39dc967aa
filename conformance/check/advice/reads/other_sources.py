"""What a write's value, or a value that is returned, is made of, where `hf` makes it of another
module of the same kind. Found in the text: the write or the sum is right, and what goes into it was
read somewhere else.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Access, Places

#: How many variables a module's name is followed through.
_HOPS = 4


@dataclass(frozen=True)
class _Module:
    """A module as the text names it, on its line; `layer` is its number where it is known, and
    `column` that of the argument which gives it.
    """

    text: str
    line: int
    layer: int | None = None
    column: int = 0

    @property
    def key(self) -> tuple[str, int | str]:
        """What is the same for one module that is named in two ways."""
        return kind_of(self.text), self.text if self.layer is None else self.layer


_Pair = tuple[_Module, _Module]


def other_sources(places: Places, write: Access) -> list[Finding]:
    """The reads behind a write in `vllm` of which `hf` has another layer or part in the place."""
    if not places.file.ported:
        return []
    theirs = Places(places.file, "hf", dual=False)
    own = [one for one in theirs.writes() if kind_of(_tail(one)) == kind_of(_tail(write))]
    if len(own) != 1:
        return []
    pairs = _unlike(_behind(places, write), _behind(theirs, own[0]))
    return _told(places, pairs, f"; line {write.line} writes what comes of it")


def other_reads(places: Places, name: str) -> list[Finding]:
    """The reads that `vllm` makes what it returns under a name of, of which `hf` has another layer
    or part in the place.
    """
    if not places.file.ported:
        return []
    theirs = Places(places.file, "hf", dual=False)
    mine, meant = (_named_all(each, each.reads(name)) for each in (places, theirs))
    return _told(places, _unlike(mine, meant))


def other_target(places: Places, theirs: Places, write: Access, own: Access) -> list[Finding]:
    """The line that names the module which a write writes to, where `hf`'s writes to another layer
    or part. Not one that `hf` has, too: then it is the write that takes another name.
    """
    pairs = _unlike(_named_all(places, [write]), _named_all(theirs, [own]))
    its = {ast.unparse(one) for one in theirs.scopes.statements if not hasattr(one, "body")}
    same = {
        one.lineno
        for one in places.scopes.statements
        if not hasattr(one, "body") and ast.unparse(one) in its
    }
    return _told(places, [one for one in pairs if one[0].line not in same], verb="names")


def _told(
    places: Places, pairs: Sequence[_Pair], follows: str = "", verb: str = "reads"
) -> list[Finding]:
    return [
        Finding(
            "other-value",
            f"line {one.line} {verb} `{one.text}`, and line {other.line} of `hf` `{other.text}`"
            f"{follows}",
            edit=_edit(places, one, other),
        )
        for one, other in pairs
    ]


def _unlike(mine: Sequence[_Module], meant: Sequence[_Module]) -> list[_Pair]:
    """The modules of `vllm` that `hf` has not, each with the one that it has in the place."""
    kinds = dict.fromkeys(kind_of(one.text) for one in mine)
    return [
        pair
        for kind in kinds
        for pair in _paired(
            *([m for m in side if kind_of(m.text) == kind] for side in (mine, meant))
        )
    ]


def _paired(mine: list[_Module], meant: list[_Module]) -> Iterator[_Pair]:
    """Of one kind: as many on both sides stand for each other in the order of the text; else it is
    known only where one module is all that is lacking, and no other is right.
    """
    ours, theirs = (Counter(one.key for one in side) for side in (mine, meant))
    extra, lacking = ours - theirs, theirs - ours
    if len(mine) == len(meant):
        for one, other in zip(mine, meant, strict=True):
            if one.key in extra and other.key in lacking:
                yield one, other
    elif len(lacking) == 1 and not ours.keys() & theirs.keys():
        yield from ((one, meant[0]) for one in mine)


def _edit(places: Places, one: _Module, other: _Module) -> Edit:
    before = places.file.line(one.line)
    named = {n.id for n in ast.walk(ast.parse(other.text)) if isinstance(n, ast.Name)}
    there = {n.id for n in ast.walk(places.function) if isinstance(n, ast.Name)}
    once = before.count(one.text) == 1 and named <= there | {places.function.args.args[0].arg}
    return Edit(one.line, before, before.replace(one.text, other.text) if once else "")


def _tail(access: Access) -> str:
    return access.module.rpartition(".")[2]


def kind_of(module: str) -> str:
    """A module's name without the numbers of layers in it."""
    return re.sub(r"\[[^\[\]]*\]", "[]", module)


def in_layer(module: str) -> str:
    """A module's name within its layer, of any other the last part of it."""
    parts = re.split(r"(?:layers|\bh|blocks)\[[^\[\]]*\]\.", module)
    return parts[-1] if len(parts) > 1 else module.rpartition(".")[2]


def module_text(places: Places, access: Access) -> str:
    """A module as it is named where it is taken from the model, where that is known."""
    found = _named(places, access.module, access.statement, _HOPS) or []
    return found[0].text if len(found) == 1 else access.module


def _behind(places: Places, write: Access) -> list[_Module]:
    """The modules whose values the value of a write is made of, each once a line."""
    way = [one for one in places.way_to(write) if one is not write.statement]
    every = [
        access
        for statement in way
        for access in places.accesses(statement)
        if access.node is not write.node  # where it writes to
    ]
    return _named_all(places, every)


def _named_all(places: Places, every: Sequence[Access]) -> list[_Module]:
    """The modules of values, each once a line."""
    modules = (_named(places, one.module, one.statement, _HOPS) for one in every)
    found = [each for one in modules if one is not None for each in one]
    return list(dict.fromkeys(found))


def _named(places: Places, module: str, near: ast.stmt, hops: int) -> list[_Module] | None:
    """A module as it is named where it is taken from the model: once a call of the helper in which
    it is, where it is given the number of the layer.
    """
    root, dot, rest = module.partition(".")
    if "[" in module or not hops:
        return _numbered(places, module, near) if "[" in module else None
    made = places.scopes.binding(root, near)
    value = statements.value_of(made) if made is not None else None
    if made is None or not isinstance(value, (ast.Attribute, ast.Subscript, ast.Name)):
        return None
    found = _named(places, places.file.segment(value), made, hops - 1)
    if found is None or not dot:
        return found
    return [replace(one, text=f"{one.text}.{rest}") for one in found]


def _numbered(places: Places, module: str, near: ast.stmt) -> list[_Module]:
    """A module with the number of its layer, as each call gives it where a helper gets it."""
    layer = places.layer(module, near)
    index = re.search(r"\[([A-Za-z_]\w*)\]", module)
    if layer is not None or index is None:
        return [_Module(module, near.lineno, layer)]
    found = []
    for argument, call in places.scopes.arguments(index[1], near):
        text = module.replace(index[0], f"[{places.file.segment(argument)}]")
        found.append(_Module(text, call.lineno, places.layer(text, call), argument.col_offset))
    return found or [_Module(module, near.lineno, layer)]
