"""Writes: on vLLM many layers return two tensors, and a write must reach the sum of both."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Access, Program, Splice, Statement, joined
from conformance.check.search.rewrites.reads import forms, without_batch

_BOTH = "a write must reach both tensors that the layer returns"


def write_both_tensors(program: Program, clues: Clues) -> Iterator[Change]:
    """Write a new value into one tensor of a layer and zero into the other; scale both."""
    for access, statement, node in _stores(program):
        base = re.sub(r"\.(?:input|inputs)$", ".output", access.core)
        if isinstance(node, cst.AugAssign):
            yield from _augmented(program, access, statement, node)
            continue
        value = program.code(node.value)
        if not access.indexes:
            yield from _replaced(program, access, statement, node, value)
            continue
        rest = access.indexes[1:] if access.indexes[0] in {"0", "1"} else access.indexes
        for cost, index in enumerate(without_batch(rest)):
            for mine, other in (("0", "1"), ("1", "0")):
                first = joined(f"{base}[{mine}]", index or (":",))
                second = joined(f"{base}[{other}]", index or (":",))
                change = (
                    program.swap(node.targets[0].target, first),
                    program.after(statement, f"{second} = 0"),
                )
                yield Change(change, _BOTH, 1 + cost + int(mine))


def _stores(
    program: Program,
) -> Iterator[tuple[Access, Statement, cst.Assign | cst.AugAssign]]:
    for access in program.accesses:
        if not access.stored:
            continue
        parent = program.parents.get(access.node)
        node = program.parents.get(parent) if isinstance(parent, cst.AssignTarget) else parent
        statement = program.statement_of(access.node)
        if statement is not None and isinstance(node, (cst.Assign, cst.AugAssign)):
            yield access, statement, node


def _replaced(
    program: Program, access: Access, statement: Statement, node: cst.Assign, value: str
) -> Iterator[Change]:
    """`layer.output = value`: the pair of a value and zeros, or a tensor alone."""
    if isinstance(node.value, cst.Tuple):
        first = program.code(node.value.elements[0].value)
        zeros = f"({first}, {first} * 0)"
        yield Change((program.swap(node.value, zeros),), _BOTH, 1)
        yield Change((program.swap(node.value, first),), "the module returns one tensor", 2)
        return
    core = access.core
    named = re.fullmatch(r"[\w.]+", value) is not None
    name = value if named else "value"
    pair: tuple[Splice, ...] = (program.swap(node.value, f"({name}, {name} * 0)"),)
    if not named:
        pair = (program.before(statement, f"value = {value}"), *pair)
    yield Change(pair, _BOTH, 1)
    rest = (program.swap(node.value, f"({value}, {core}[1])"),)
    yield Change(rest, "the module returns two tensors", 3)
    for target in (f"{core}[:]", f"{core}[0][:]"):
        yield Change((program.swap(access.node, target),), "write in place", 3)
    both = (
        program.swap(access.node, f"{core}[0][:]"),
        program.after(statement, f"{core}[1][:] = 0"),
    )
    yield Change(both, _BOTH, 2)


def _augmented(
    program: Program, access: Access, statement: Statement, node: cst.AugAssign
) -> Iterator[Change]:
    """`layer.output[0][rows] *= factor`: the same of the other tensor."""
    sign = program.code(node.operator).strip()
    value = program.code(node.value)
    rest = (
        access.indexes[1:]
        if access.indexes and access.indexes[0] in {"0", "1"}
        else (access.indexes)
    )
    scales = sign in {"*=", "/="}
    for cost, index in enumerate(without_batch(rest)):
        first = joined(f"{access.core}[0]", index or (":",))
        second = joined(f"{access.core}[1]", index or (":",))
        both = (
            program.swap(access.node, first),
            program.after(statement, f"{second} {sign} {value}"),
        )
        yield Change(both, _BOTH, (1 if scales else 5) + cost)
        for target in (first, second):
            if target != program.code(access.node):
                change = (program.swap(access.node, target),)
                yield Change(
                    change, "write into one of the two tensors", (3 if scales else 1) + cost
                )
        one = joined(access.core, index or (":",))
        if one != program.code(access.node):
            yield Change((program.swap(access.node, one),), "write in place", 3 + cost)


def write_elsewhere(program: Program, clues: Clues) -> Iterator[Change]:
    """Write into another tensor of the module, or with other indexes."""
    for access, _, _node in _stores(program):
        here = program.code(access.node)
        for cost, form in forms(access.core, access.indexes, clues):
            if form != here and not form.startswith("(") and "sum(" not in form:
                yield Change((program.swap(access.node, form),), "write elsewhere", 1 + cost)
        base, role = access.core.rpartition(".")[::2]
        for part in clues.modules:
            if base.endswith(f".{part}"):
                layer = base.removesuffix(f".{part}")
                others = (layer, *(f"{layer}.{one}" for one in clues.modules if one != part))
                for other in others:
                    text = joined(f"{other}.{role}", access.indexes)
                    yield Change((program.swap(access.node, text),), "write to another part", 7)


def leave_out_write(program: Program, clues: Clues) -> Iterator[Change]:
    """Leave out a statement that writes: the change may be made twice."""
    stores = [statement for _, statement, _ in _stores(program)]
    for statement in stores:
        alike = [one for one in stores if _alike(one.text) == _alike(statement.text)]
        cost = 1 if len(alike) > 1 else 6
        yield Change((program.without(statement),), "the write is made twice", cost)


def _alike(text: str) -> str:
    return re.sub(r"\boutput\[[01]\]", "output", re.sub(r"\s", "", text))


def put_back(program: Program, clues: Clues) -> Iterator[Change]:
    """Write into the module what was changed in a copy of its value."""
    for node in program.expressions(cst.Assign):
        target = node.targets[0].target
        if not isinstance(target, cst.Name) or ".output" not in program.code(node.value):
            continue
        statement = program.statement_of(node)
        if statement is None:
            continue
        name = target.value
        yield from _without_copy(program, node)
        core = next((one.core for one in program.accesses if _within(program, one, node)), "")
        if not core:
            continue
        for last in _changes_of(program, name, node):
            for cost, line in enumerate(
                (
                    f"{core} = ({name}, {name} * 0)",
                    f"{core} = {name}",
                    f"{core}[:] = {name}",
                    f"{core}[0][:] = {name}",
                )
            ):
                put = program.after(last, line)
                yield Change((put,), "what is changed in a copy is put back", 2 + cost)
                whole = program.swap(node.value, f"{core}[0] + {core}[1]")
                yield Change((whole, put), "what is changed in a copy is put back", 2 + cost)
            yield from _in_place(program, name, core, last)


def _within(program: Program, access: Access, node: cst.Assign) -> bool:
    begin, end = program.span(node.value)
    start, stop = program.span(access.node)
    return begin <= start and stop <= end


def _without_copy(program: Program, node: cst.Assign) -> Iterator[Change]:
    text = program.code(node.value)
    bare = re.sub(r"\.(?:clone|detach|contiguous|save|to|float)\([^()]*\)", "", text)
    if bare != text:
        words = "a copy does not go back into the model"
        yield Change((program.swap(node.value, bare),), words, 2, anywhere=True)


def _changes_of(program: Program, name: str, node: cst.Assign) -> list[Statement]:
    """The statements that change what a name holds, after its assignment."""
    end = program.span(node)[1]
    found = []
    for statement in program.statements:
        changed = re.match(rf"{name}(\[.*\])?(\.\w+_\(.*\))?\s*(=|[-+*/]=|$)", statement.text)
        if (
            statement.start > end
            and changed
            and isinstance(statement.node, cst.SimpleStatementLine)
        ):
            found.append(statement)
    return found[::-1][:2]


def _in_place(program: Program, name: str, core: str, last: Statement) -> Iterator[Change]:
    """Change the module's own tensors where the copy is changed."""
    found = re.fullmatch(rf"{name}(\[.*?\])? (=|[-+*/]=) (.*)", last.text, flags=re.DOTALL)
    if found is None:
        again = re.fullmatch(rf"{name} = {name} ([-+*/]) (.*)", last.text, flags=re.DOTALL)
        if again is None:
            return
        index, sign, value = "", f"{again[1]}=", again[2]
    else:
        index, sign, value = found[1] or "[:]", found[2], found[3]
    index = index or "[:]"
    swap = partial(_whole, last)
    first, second = f"{core}[0]{index}", f"{core}[1]{index}"
    other = f"{second} = 0" if sign == "=" else f"{second} {sign} {value}"
    lines = f"{first} {sign} {value}\n{last.indent}{other}"
    if sign in {"=", "*=", "/="}:
        yield Change((swap(lines),), _BOTH, 2)
        after = program.after(last, other)
        yield Change((after,), _BOTH, 2)
    else:
        yield Change((swap(f"{first} {sign} {value}"),), "write into the model's own tensor", 2)
    yield Change((swap(f"{core}{index} {sign} {value}"),), "write into the model's own tensor", 3)
    yield Change((swap(f"{name}{index} {sign} {value}"),), "write into the model's own tensor", 3)


def _whole(statement: Statement, text: str) -> Splice:
    """Replace a whole statement."""
    return Splice(statement.start, statement.end, text)


def write_to_sum(program: Program, clues: Clues) -> Iterator[Change]:
    """`(output[0] + output[1])[rows] += value` changes a new tensor: write into one of the two."""
    for statement in program.statements:
        found = re.match(
            r"\(([\w.\[\]]+\.output)\[0\] \+ \1\[1\]\)(\[.*?\])? ?([-+*/]?=) ?(.*)",
            statement.text,
            flags=re.DOTALL,
        )
        if not found:
            continue
        core, index, sign, value = found.groups()
        index = index or "[:]"
        swap = partial(_whole, statement)
        one = f"{core}[0]{index} {sign} {value}"
        rest = "= 0" if sign == "=" else f"{sign} {value}"
        yield Change((swap(f"{one}\n{statement.indent}{core}[1]{index} {rest}"),), _BOTH, 1)
        yield Change((swap(one),), "write into the model's own tensor", 1)


_CAST = "what is written has the dtype of the stream"


def cast_written(program: Program, clues: Clues) -> Iterator[Change]:
    """Cast what is written to the dtype of the stream."""
    for access, _, node in _stores(program):
        parts = [node.value]
        if isinstance(node.value, cst.Tuple):
            parts = [element.value for element in node.value.elements]
        for cost, dtype in enumerate((f"{access.core}[0].dtype", f"{access.core}.dtype")):
            casts = tuple(program.swap(one, _cast(program.code(one), dtype)) for one in parts)
            yield Change(casts, _CAST, 3 + cost)
            for one in casts if len(casts) > 1 else ():
                yield Change((one,), _CAST, 4 + cost)
        for value in program.walk(node.value):
            if isinstance(value, cst.Name) and value.value in _vectors(program):
                cast = _cast(value.value, f"{access.core}[0].dtype")
                yield Change((program.swap(value, cast),), _CAST, 4)


def leave_out_cast(program: Program, clues: Clues) -> Iterator[Change]:
    """Leave a value in the dtype that it has."""
    for node in program.expressions(cst.Call):
        func = program.code(node.func)
        widens = re.search(r"\.(float|double|half|bfloat16)$", func) and not node.args
        fixed = func.endswith(".to") and node.args and "dtype" not in program.code(node)
        if widens or fixed:
            yield Change((program.swap(node, func.rpartition(".")[0]),), _CAST, 4)


def _cast(text: str, dtype: str) -> str:
    plain = text if re.fullmatch(r"[\w.]+", text) else f"({text})"
    return f"{plain}.to({dtype})"


def _vectors(program: Program) -> set[str]:
    """Names at the top of the file that hold tensors."""
    return {
        part.targets[0].target.value
        for one in program.module.body
        if isinstance(one, cst.SimpleStatementLine)
        for part in one.body
        if isinstance(part, cst.Assign)
        and isinstance(part.targets[0].target, cst.Name)
        and "torch" in program.code(part.value)
    }
