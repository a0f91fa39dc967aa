"""Rewrites of writes: many of vLLM's layers return two tensors, whose sum a write must change."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import (
    Access,
    ParsedFile,
    Statement,
    joined,
    names_in,
)
from conformance.commands.check.search.rewrites.reads import without_batch

_BOTH = "a write must reach both tensors that the layer returns"
_ONE = "write into one of the two tensors"

#: An assignment of any kind: target, sign and value.
_ASSIGNMENT = re.compile(r"(.+?) ?((?<![=!<>])[-+*/]?=)(?!=) ?(.+)", re.DOTALL)


#: A statement that changes a local name's value in place, or passes it to a function that may.
_IN_PLACE = re.compile(
    r"(\w+)(?:\[[^=]*\])?(?:\[[^=]*\] =| [-+*/]=|\.\w+_\()|[\w.]+\((\w+)(?=[,)])"
)


def ways_to_write(
    core: str, indexes: Sequence[str], sign: str, value: str
) -> Iterator[tuple[int, str, str]]:
    """Yield statements that write a value to a module's output with a `sign` such as `=`, `*=` or
    `+=`: each with its cost and the reason.
    """
    scales = sign in {"=", "*=", "/="}
    if sign == "=" and not indexes:
        named = re.fullmatch(r"[\w.]+", value)
        name, before = (value, "") if named else ("written", f"written = {value}\n")
        yield 1, _BOTH, f"{before}{core} = ({name}, {name} * 0)"
        yield 2, "the module returns one tensor", f"{core} = {value}"
        yield 3, "the module returns two tensors", f"{core} = ({value}, {core}[1])"
    rest = indexes[1:] if indexes[:1] in (("0",), ("1",)) else indexes
    for number, each in enumerate(without_batch(rest)):
        index = each or (":",)
        first, second = (joined(f"{core}[{half}]", index) for half in "01")
        both = f"{first} {sign} {value}\n{second} {sign} {'0' if sign == '=' else value}"
        yield number + (1 if scales else 5), _BOTH, both
        yield number + (3 if scales else 1), _ONE, f"{first} {sign} {value}"
        yield number + (3 if scales else 1), _ONE, f"{second} {sign} {value}"
        yield number + 3, "write in place", f"{joined(core, index)} {sign} {value}"


def stores(program: ParsedFile) -> Iterator[tuple[Access, Statement, str, str]]:
    """Yield the writes to modules: target, statement, sign and value."""
    for access in program.accesses:
        statement = program.statement_of(access.node) if access.stored else None
        found = _ASSIGNMENT.fullmatch(statement.text) if statement else None
        if statement and found:
            yield access, statement, found[2], found[3]


def write_both_tensors(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Write a new value into one tensor of a layer and zero into the other, or scale both."""
    for access, statement, sign, text in stores(program):
        core = re.sub(r"\.(?:input|inputs)$", ".output", access.core)
        node = statement.node.body[0].value  # type: ignore[attr-defined]
        value = program.code(node.elements[0].value) if isinstance(node, cst.Tuple) else text
        for cost, words, written in ways_to_write(core, access.indexes, sign, value):
            yield change(cost, words, program.put(statement, written))


def change_no_copy(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Take a module's own value, in the place of a copy that is changed."""
    for _, holes in program.matches("A = V"):
        value = program.code(holes["V"])
        bare = re.sub(r"\.(?:clone|detach|contiguous|save|to|float)\([^()]*\)", "", value)
        if bare != value and ".output" in value:
            words = "a copy does not go back into the model"
            yield change(2, words, program.swap(holes["V"], bare), anywhere=True)


def write_into_tensor(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Write into the tensor that a name holds, in the place of binding the name to a new one."""
    for node, holes in program.matches("A = V"):
        name, value = program.code(holes["A"]), program.code(holes["V"])
        if name in names_in(value) and program.around(node, cst.With):
            whole = program.swap(holes["A"], f"{name}[:]")
            yield change(2, "write into the model's own tensor", whole, anywhere=True)


def changed_in_place(statement: Statement) -> str:
    """Return the local name whose value a statement may change in place, "" if there is none."""
    found = _IN_PLACE.match(statement.text)
    return (found[1] or found[2]) if found else ""


def put_back_sum(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Write a sum of a layer's two tensors back into them where its value is changed in place."""
    for node, holes in program.matches("A = C[0] + C[1]"):
        name, core = program.code(holes["A"]), program.code(holes["C"])
        own = program.statements_of(program.around(node, cst.FunctionDef)[0])
        text = f"{core} = ({name}, {name} * 0)"
        puts = [program.after(one, text) for one in own if changed_in_place(one) == name]
        yield from [change(1, _BOTH, *puts, anywhere=True)] if puts else []


def swap_statements(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Exchange two simple statements of a trace that follow each other."""
    simple = [one for one in program.statements if isinstance(one.node, cst.SimpleStatementLine)]
    for one, other in pairwise(simple):
        same = program.parents[one.node] is program.parents[other.node]
        if same and program.trace_of(one):
            swapped = program.put(one, other.text), program.put(other, one.text)
            yield change(5, "these lines change places", *swapped, anywhere=True)
