"""Saves: what leaves a block is saved, a copy where it would be overwritten, made in the block."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, Splice, Statement

_COPY = "a value that is kept is a copy: the engine overwrites its buffers"
_INSIDE = "what a block fills is made in it and saved"


def copy_kept(program: Program, clues: Clues) -> Iterator[Change]:
    """Put `.clone()` where a value is saved, appended or assigned to an entry."""
    changes = list(_copies(program))
    for one in changes:
        yield Change((one,), _COPY, 3, anywhere=True)
    if len(changes) > 1:
        yield Change(tuple(changes), _COPY, 4, anywhere=True)


def _copies(program: Program) -> Iterator[Splice]:
    for node in program.expressions(cst.Call):
        if not isinstance(node.func, cst.Attribute):
            continue
        name, value = node.func.attr.value, node.func.value
        if name == "save" and ".clone()" not in program.code(value):
            if ".output" in program.code(value) or ".logits" in program.code(value):
                yield program.swap(value, f"{program.code(value)}.clone()")
        elif name == "append" and len(node.args) == 1:
            kept = node.args[0].value
            if not program.code(kept).endswith((".clone()", "}", ")")):
                yield program.swap(kept, f"{_primary(program, kept)}.clone()")
            elif isinstance(kept, cst.Dict):
                yield from _entries(program, kept)
    for node in program.expressions(cst.Assign):
        value, target = node.value, node.targets[0].target
        text = program.code(value)
        plain = isinstance(value, (cst.Attribute, cst.Subscript, cst.Name, cst.BinaryOperation))
        if (plain and re.search(r"\.(?:output|input|logits|samples)\b", text)) or (
            plain and isinstance(target, cst.Subscript)
        ):
            yield program.swap(value, f"{_primary(program, value)}.clone()")


def _entries(program: Program, node: cst.Dict) -> Iterator[Splice]:
    for element in node.elements:
        if isinstance(element, cst.DictElement):
            yield program.swap(element.value, f"{_primary(program, element.value)}.clone()")


def _primary(program: Program, node: cst.BaseExpression) -> str:
    text = program.code(node)
    primary = isinstance(node, (cst.Attribute, cst.Subscript, cst.Name, cst.Call))
    return text if primary or text.startswith("(") else f"({text})"


def save_used(program: Program, clues: Clues) -> Iterator[Change]:
    """Save what a block assigns and the function uses behind it."""
    for node in program.expressions(cst.Assign):
        target = node.targets[0].target
        if not isinstance(target, cst.Name) or not program.around(node, cst.With):
            continue
        text = program.code(node.value)
        if text.endswith(".save()") or (".save(" in text):
            continue
        for saved in (f"{_primary(program, node.value)}.save()", f"({text}).clone().save()"):
            yield Change((program.swap(node.value, saved),), "save what leaves the block", 2)
    for node in program.expressions(cst.Call):
        text = program.code(node)
        inner = re.search(r"\.save\(\)(?=.)", text)
        if inner and not text.endswith(".save()"):
            moved = text.replace(".save()", "", 1) + ".save()"
            yield Change((program.swap(node, moved),), "save the whole expression", 3)


def fill_inside(program: Program, clues: Clues) -> Iterator[Change]:
    """Make a list or a dict in the block that fills it, and save it there."""
    for statement in program.statements:
        found = re.fullmatch(
            r"(\w+)(?:, (\w+))? = (\[\]|\{\}|dict\(\)|list\(\)|defaultdict\(\w+\))"
            r"(?:, (\[\]|\{\}))?(\.save\(\))?",
            statement.text,
        )
        if not found or found[5]:
            continue
        names = [name for name in (found[1], found[2]) if name]
        empties = [empty for empty in (found[3], found[4]) if empty]
        saved = ", ".join(f"{empty}.save()" for empty in empties)
        line = f"{', '.join(names)} = {saved}"
        if program.around(statement.node, cst.With):
            yield Change((Splice(statement.start, statement.end, line),), _INSIDE, 2, anywhere=True)
            continue
        for block in _blocks_that_fill(program, names[0]):
            change = (program.without(statement), program.inside(block, line))
            yield Change(change, _INSIDE, 2, anywhere=True)
    yield from _carried_over(program)


def _blocks_that_fill(program: Program, name: str) -> list[Statement]:
    """The outermost blocks of traces in which a name is filled."""
    found = []
    for statement in program.statements:
        if not re.match(rf"{name}(\.append|\.update|\[)", statement.text):
            continue
        blocks = program.around(statement.node, cst.With)
        outer = program.statement_of(blocks[-1]) if blocks else None
        if outer is not None and outer not in found:
            found.append(outer)
    return found


def _carried_over(program: Program) -> Iterator[Change]:
    """Fill a container that is made and saved in the block, and hand it over behind the block to
    the one that was made before.
    """
    for statement in program.statements:
        found = re.match(r"(\w+)(?=(\.append\(|\[.+?\] = ))", statement.text, flags=re.DOTALL)
        blocks = program.around(statement.node, cst.With)
        outer = program.statement_of(blocks[-1]) if found and blocks else None
        if (
            found is None
            or outer is None
            or not isinstance(statement.node, cst.SimpleStatementLine)
        ):
            continue
        name, listed = found[1], found[2].startswith(".")
        change = (
            program.inside(outer, f"here = {'[]' if listed else '{}'}.save()"),
            Splice(statement.start, statement.start + len(name), "here"),
            program.below(outer, f"{name}.{'extend' if listed else 'update'}(here)"),
        )
        yield Change(change, _INSIDE, 4, anywhere=True)


def key_by_prompt(program: Program, clues: Clues) -> Iterator[Change]:
    """Fill a dict with a key for each prompt: the invokes of a trace run side by side, and what
    they append to one list does not come back.
    """
    for statement in program.statements:
        found = re.fullmatch(r"(\w+)\.append\((.+)\)", statement.text, flags=re.DOTALL)
        loop: Any = next(iter(program.around(statement.node, cst.For)), None)
        blocks = program.around(statement.node, cst.With)
        if not found or loop is None or len(blocks) < 2:
            continue
        name, value = found[1], found[2]
        made = next((o for o in program.statements if o.text == f"{name} = [].save()"), None)
        outer = program.statement_of(blocks[-1])
        if made is None or outer is None or not isinstance(loop.target, cst.Name):
            continue
        key, prompts = loop.target.value, program.code(loop.iter)
        change = (
            Splice(made.start, made.end, f"{name} = {{}}.save()"),
            Splice(statement.start, statement.end, f"{name}[{key}] = {value}"),
            program.below(outer, f"{name} = [{name}[{key}] for {key} in {prompts}]"),
        )
        words = "invokes run side by side: each fills its own key"
        yield Change(change, words, 2, anywhere=True)


def make_inside(program: Program, clues: Clues) -> Iterator[Change]:
    """Make an object in the block whose methods fill it there, and save what they fill."""
    for statement in program.statements:
        found = re.fullmatch(r"(\w+) = [\w.]+\(.*\)", statement.text, flags=re.DOTALL)
        if not found or program.around(statement.node, cst.With):
            continue
        name = found[1]
        fills = [one for one in program.statements if re.match(rf"{name}\.\w+\(", one.text)]
        blocks = [program.around(one.node, cst.With) for one in fills]
        outer = next((program.statement_of(b[-1]) for b in blocks if b), None)
        parts = set(re.findall(rf"\b{name}\.(\w+)(?!\w*\()", program.text))
        for part in sorted(parts):
            if outer is None:
                continue
            made = (
                program.without(statement),
                program.inside(outer, statement.text, f"{part} = {name}.{part}.save()"),
            )
            later = [
                program.swap(node, part)
                for node in program.expressions(cst.Attribute)
                if program.code(node) == f"{name}.{part}"
                and program.span(node)[0] > program.span(outer.node)[1]
            ]
            yield Change((*made, *later), _INSIDE, 4, anywhere=True)


def keep_order(program: Program, clues: Clues) -> Iterator[Change]:
    """Give and return values in the order in which they are meant."""
    for node in program.expressions(cst.Call):
        func = program.code(node.func)
        if func in {"reversed", "sorted"} and node.args:
            inner = program.code(node.args[0].value)
            yield Change(
                (program.swap(node, inner),), "the prompts in their order", 4, anywhere=True
            )
    for node in program.expressions(cst.Return):
        entries = _values(node.value)
        for at, first in enumerate(entries):
            for second in entries[at + 1 :]:
                change = (
                    program.swap(first, program.code(second)),
                    program.swap(second, program.code(first)),
                )
                yield Change(change, "the values are under each other's name", 4)
        for entry in entries:
            for other in entries:
                if program.code(entry) != program.code(other):
                    taken = (program.swap(entry, program.code(other)),)
                    yield Change(taken, "another value is returned", 7)


def _values(node: cst.BaseExpression | None) -> list[cst.BaseExpression]:
    if isinstance(node, cst.Dict):
        return [one.value for one in node.elements if isinstance(one, cst.DictElement)]
    return []


def swap_targets(program: Program, clues: Clues) -> Iterator[Change]:
    """Unpack two values in the other order."""
    for node in program.expressions(cst.AssignTarget):
        if isinstance(node.target, cst.Tuple) and len(node.target.elements) == 2:
            first, second = (element.value for element in node.target.elements)
            change = (
                program.swap(first, program.code(second)),
                program.swap(second, program.code(first)),
            )
            yield Change(change, "the two values are in the other order", 4)


def swap_invokes(program: Program, clues: Clues) -> Iterator[Change]:
    """Give the prompts of two invokes, or traces, to each other."""
    calls = [
        node
        for node in program.expressions(cst.Call)
        if isinstance(node.func, cst.Attribute)
        and node.func.attr.value in {"invoke", "trace"}
        and node.args
        and node.args[0].keyword is None
    ]
    for at, first in enumerate(calls):
        for second in calls[at + 1 :]:
            one, two = first.args[0].value, second.args[0].value
            if program.code(one) != program.code(two):
                change = (
                    program.swap(one, program.code(two)),
                    program.swap(two, program.code(one)),
                )
                yield Change(change, "the prompts are each other's", 5, anywhere=True)
