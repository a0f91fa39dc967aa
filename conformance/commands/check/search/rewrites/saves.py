"""Rewrites of saves: save what leaves a block, copy it, and create containers in the block."""

from __future__ import annotations

import re
from collections.abc import Iterator

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import ParsedFile, Splice, Statement, enclosed

_COPY = "a value that is kept is a copy: the engine overwrites its buffers"
_INSIDE = "what a block fills is made in it and saved"

#: Expressions for empty containers.
_EMPTY = r"\[\]|\{\}|dict\(\)|list\(\)|defaultdict\(\w+\)"
#: A tensor that is made to be filled.
_ALLOCATED = r"torch\.(?:zeros|ones|empty|full)(?:_like)?\(.*\)"


def copy_kept(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Add `.clone()` to values that are saved, appended or assigned."""
    changes = [
        program.swap(node, f"{enclosed(node, program.code(node))}.clone()")
        for node in _kept(program)
    ]
    for one in changes:
        yield change(3, _COPY, one, anywhere=True)
    if len(changes) > 1:
        yield change(4, _COPY, *changes, anywhere=True)


def _kept(program: ParsedFile) -> Iterator[cst.CSTNode]:
    """Yield the values that are kept without a copy: saved, appended (also in a dict), assigned."""
    for _, holes in program.matches("X.save()"):
        text = program.code(holes["X"])
        if re.search(r"\.(?:output|logits)\b", text) and ".clone()" not in text:
            yield holes["X"]
    for _, holes in program.matches("X.append(A)"):
        kept = [holes["A"]]
        if isinstance(kept[0], cst.Dict):
            kept = [one.value for one in kept[0].elements if isinstance(one, cst.DictElement)]
        yield from (one for one in kept if not program.code(one).endswith(")"))
    for _, holes in program.matches("A = V"):
        kinds = (cst.Attribute, cst.Subscript, cst.Name, cst.BinaryOperation)
        plain = isinstance(holes["V"], kinds)
        read = re.search(r"\.(?:output|input|logits|samples)\b", program.code(holes["V"]))
        if plain and (read or isinstance(holes["A"], cst.Subscript)):
            yield holes["V"]


def save_used(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Save values that a block assigns, and move `.save()` to the end of its expression."""
    for node, holes in program.matches("A = V"):
        block, text = program.around(node, cst.With), program.code(holes["V"])
        if isinstance(holes["A"], cst.Name) and block and ".save(" not in text:
            for saved in (f"{enclosed(holes['V'], text)}.save()", f"({text}).clone().save()"):
                yield change(2, "save what leaves the block", program.swap(holes["V"], saved))
    for node in program.expressions(cst.Call):
        text = program.code(node)
        if ".save()" in text and not text.endswith(".save()"):
            moved = text.replace(".save()", "", 1) + ".save()"
            yield change(3, "save the whole expression", program.swap(node, moved))


def fill_inside(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Create a list, dict or tensor in the block that fills it, and save it there."""
    containers = rf"([\w, ]+) = ((?:(?:, )?(?:{_EMPTY}))+|{_ALLOCATED})"
    for statement, found in program.fitting(containers):
        made = rf"{_ALLOCATED}|{_EMPTY}"
        line = f"{found[1]} = {re.sub(made, lambda empty: f'{empty[0]}.save()', found[2])}"
        if program.trace_of(statement):
            yield change(2, _INSIDE, program.put(statement, line), anywhere=True)
            continue
        for block in _blocks_that_fill(program, found[1].partition(",")[0]):
            moved = program.without(statement), program.inside(block, line)
            yield change(2, _INSIDE, *moved, anywhere=True)
    yield from _carried_over(program)


def _blocks_that_fill(program: ParsedFile, name: str) -> list[Statement]:
    """Return the traces in which the name's object is filled or one of its methods is called."""
    filling = program.fitting(rf"{name}(\.\w+\(|\[).*")
    return list(dict.fromkeys(block for one, _ in filling if (block := program.trace_of(one))))


def _carried_over(program: ParsedFile) -> Iterator[Change]:
    """Fill a new container that the block saves, and copy it to the original after the block."""
    for statement, found in program.fitting(r"(\w+)(\.append\(|\[.+?\] = ).*"):
        outer = program.trace_of(statement)
        if not outer or not isinstance(statement.node, cst.SimpleStatementLine):
            continue
        empty, hand_over = ("[]", "extend") if found[2].startswith(".") else ("{}", "update")
        splices = (
            program.inside(outer, f"here = {empty}.save()"),
            Splice(statement.start, statement.start + len(found[1]), "here"),
            program.below(outer, f"{found[1]}.{hand_over}(here)"),
        )
        yield change(4, _INSIDE, *splices, anywhere=True)


def call_below(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Save what a block passes to a method of an outer object, and call the method after it."""
    for node in program.expressions(cst.Call):
        statement, outer = program.statement_of(node), None
        if statement is not None and statement.text == program.code(node):
            outer = program.trace_of(statement)
        found = re.match(r"(\w+)\.\w+(?=\()", program.code(node))
        if not (outer and statement and found) or len(node.args) != 1:
            continue
        value = node.args[0].value
        splices = (
            program.put(statement, f"passed = {enclosed(value, program.code(value))}.save()"),
            program.below(outer, f"{found[0]}(passed)"),
        )
        words = "the engine has its own copy of an object: call its method after the block"
        yield change(3, words, *splices, anywhere=True)


def key_by_prompt(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Fill a dict with a key for each prompt: concurrent invokes lose appends to one list."""
    for statement, found in program.fitting(r"(\w+)\.append\((.+)\)"):
        loops = program.around(statement.node, cst.For)
        outer = program.trace_of(statement)
        if not loops or not outer:
            continue
        name, key, prompts = found[1], *map(program.code, (loops[0].target, loops[0].iter))
        lists = [one for one, _ in program.fitting(rf"{name} = \[\](\.save\(\))?")]
        if lists and key.isidentifier() and len(program.around(statement.node, cst.With)) > 1:
            splices = (
                program.put(lists[0], lists[0].text.replace("[]", "{}")),
                program.put(statement, f"{name}[{key}] = {found[2]}"),
                program.below(outer, f"{name} = [{name}[{key}] for {key} in {prompts}]"),
            )
            words = "invokes run side by side: each fills its own key"
            yield change(2, words, *splices, anywhere=True)


def make_inside(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Create an object in the block in which its methods fill it, and save its attributes."""
    for statement, found in program.fitting(r"(\w+) = [\w.]+\(.*\)"):
        if program.trace_of(statement):
            continue
        name = found[1]
        parts = sorted(set(re.findall(rf"\b{name}\.(\w+)(?!\w*\()", program.text)))
        for outer in _blocks_that_fill(program, name)[:1]:
            for part in parts:
                later = [
                    program.swap(node, part)
                    for node, holes in program.matches(f"X.{part}")
                    if program.code(holes["X"]) == name
                    and program.span(node)[0] > program.span(outer.node)[1]
                ]
                saved = f"{part} = {name}.{part}.save()"
                made = program.without(statement), program.inside(outer, statement.text, saved)
                yield change(4, _INSIDE, *made, *later, anywhere=True)
