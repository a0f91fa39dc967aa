"""From what a write was seen to do to the line that is to be changed, and how."""

from __future__ import annotations

import ast
import re
from functools import partial

from conformance.check.advice.edits import (
    NO_BATCH,
    SUM,
    Edit,
    before_layers,
    is_layer,
    replaced,
    shifted,
)
from conformance.check.advice.reads import batch_axis
from conformance.check.advice.reads.computed_values import known_here
from conformance.check.advice.reads.other_sources import in_layer, kind_of, module_text
from conformance.check.advice.unlike_names import reads_the_same
from conformance.check.advice.writes.new_values import new_value
from conformance.check.advice.writes.step_loops import above_the_loop
from conformance.check.parsing import module_values, statements, steps
from conformance.check.parsing.dataflow import Access, Places
from conformance.check.values.divergence import BEFORE, Parting

_COPY = "a value that is only bound to a name, or copied first, does not go back"

_ONCE = f"{SUM}: what is added to one of them is added to the stream"

#: What is another thing of a write that reads as the one of `hf`, by what it was seen to do.
_WHAT_ELSE = dict.fromkeys(
    ("other-layer", "other-tokens", "too-many", "partial", "elsewhere"),
    ": the place that it writes is another one",
) | dict.fromkeys(
    ("", "scaled", "twice", "first-half", "second-half"),
    ": the value that it writes is another one",
)

_REPLACES = f"{SUM}, so what replaces the stream must clear or scale both"


def write_edit(places: Places, part: Parting) -> Edit | None:
    """The line that writes at this layer, and the edit for what the write was seen to do."""
    here = written_here(places, part)
    changed = _of_its_own(places) if part.kind == "dropped" and not here else None
    if changed is not None:
        return changed
    named = partial(_names, part)
    rebound = places.rebound(named) if part.kind == "dropped" else None
    if rebound is not None and not any(map(named, here)):
        statement, taken = rebound
        return _put_back(places, statement, statements.bound(statement)[0], taken)
    if not here:
        return _lacking(places, part)
    axis = batch_axis.written_by(places, here)
    if axis:
        return axis[0]
    found = _of_the_step(places, part, here)
    if found is None and part.kind == "elsewhere":
        found = next((edit for one in here if (edit := new_value(places, one))), None)
    if part.kind == "twice":
        found = next((edit for one in here if (edit := _over_halves(places, one))), found)
    return found or _at_the_write(places, part, here)


def _over_halves(places: Places, write: Access) -> Edit | None:
    """A write in a loop over what a layer returns: the loop over one of its halves."""
    loop = places.loop_over(_root(write), write.statement)
    if loop is None or not is_layer(write):
        return None
    after = replaced(places, loop.iter, f"{places.file.operand(loop.iter)}[:1]")
    return Edit(loop.lineno, places.file.line(loop.lineno), after, _ONCE)


def _lacking(places: Places, part: Parting) -> Edit | None:
    """The trace in which nothing is written to the embeddings, where `hf` does it in a line."""
    block = places.trace_of(part.own, part.ran)
    if part.layer != BEFORE or not places.file.ported or block is None:
        return None
    theirs = Places(places.file, "hf", dual=False)
    lines = dict.fromkeys(one.line for one in theirs.writes() if before_layers(one))
    shown = ", and ".join(f"`{theirs.file.line(line).strip()}`, line {line}" for line in lines)
    why = f"`hf` has {shown}, and this trace nothing in its place" if lines else ""
    return Edit(block.lineno, places.file.line(block.lineno), "", why)


def _of_its_own(places: Places) -> Edit | None:
    """Of a function that changes nothing of the model's: the one statement that changes in place a
    value which it makes of a layer's itself.
    """
    found = []
    for statement in places.scopes.statements:
        target = statements.target(statement)
        if isinstance(statement, ast.AugAssign) and isinstance(target, ast.Name):
            made = places.scopes.binding(target.id, statement)
            taken = places.sources(made) if made is not None and made is not statement else []
            if taken and all(map(is_layer, taken)):
                found.append((statement, target.id, taken))
    return _put_back(places, *found[0]) if len(found) == 1 else None


def _names(part: Parting, access: Access) -> bool:
    """Does a module's value name the place where the two sides part?"""
    layer = part.layer if part.written is None else part.written
    return before_layers(access) if layer == BEFORE else access.layer == layer


def written_here(places: Places, part: Parting) -> list[Access]:
    """The writes at the layer where the two sides part: those that name it, or else those of which
    it is not known, or else all; of the trace in which they part, where that is known. Those to the
    embeddings are right where the first layer is given the same on both sides.
    """
    writes = _of_the_trace(places, part)
    if part.entered:
        writes = [one for one in writes if not before_layers(one)] or writes
    here = [one for one in writes if _names(part, one)]
    if part.layer == BEFORE and not here:
        return []
    here = here or [one for one in writes if one.layer is None] or writes
    if len(here) > 1 and places.file.ported:
        theirs = Places(places.file, "hf", dual=False)
        here = sorted(here, key=lambda one: _as_in_hf(places, theirs, one))
    if part.kind in {"dropped", "partial"}:
        return here
    # What arrived was not written to a tensor of the trace's own.
    return sorted(here, key=lambda one: _to_a_sum(places, one))


def _as_in_hf(places: Places, theirs: Places, write: Access) -> bool:
    """Does a write read as the one of `hf` in its place? Of several it is rather another."""
    own = counterpart(places, theirs, write)
    return own is not None and reads_the_same(write.statement, own.statement)


def _of_the_trace(places: Places, part: Parting) -> list[Access]:
    """The writes without those of other traces; all where none is left, or it is not known."""
    writes, own = places.writes(), places.trace_of(part.own, part.ran)
    others = [one for one in places.traces() if own is not None and one is not own]
    elsewhere = {node for one in others for node in ast.walk(one)}
    return [one for one in writes if one.statement not in elsewhere] or writes


def _to_a_sum(places: Places, write: Access) -> bool:
    """Does it write to a name that is bound to a sum?"""
    target = statements.target(write.statement)
    if target is not None and any(node is write.node for node in ast.walk(target)):
        return False
    made = places.scopes.binding(_root(write), write.statement)
    value = statements.value_of(made) if made is not None else None
    return value is not None and statements.adds(value)


def _at_the_write(places: Places, part: Parting, here: list[Access]) -> Edit:
    """One of the lines that write, and the edit for what it was seen to do."""
    write = _second(here) if part.kind == "twice" and len(here) > 1 else here[0]
    before = places.file.line(write.line)
    if part.written is not None and part.meant is not None:
        right = shifted(write.module, part.meant - part.written)
        after = before.replace(write.module, right) if right else before
        at = Edit(write.line, before, after if after != before else "")
        return at if at.after else _beside_transformers(places, write, part) or at
    if part.kind == "partial" and (whole := _without_token(places, write)):
        return Edit(write.line, before, replaced(places, *whole), NO_BATCH)
    halved = part.kind in {"first-half", "second-half"}
    if halved and (after := _pair(places, write, part) or _both(places, write)):
        return Edit(write.line, before, after, _REPLACES)
    if part.kind == "partial" and (token := _one_token(write, part)) is not None:
        return Edit(write.line, before, replaced(places, token, ":"), NO_BATCH)
    if part.kind == "dropped" and (put := _of_a_copy(places, write) or _of_a_sum(places, write)):
        return put
    after, why = _writing(write, before, part.kind, part.step)
    live = in_its_place(write) or places.live(_root(write), write.statement)
    if part.kind in {"dropped", "partial"} and live:
        why = ""  # it is no copy that is changed
    beside = None if after or why else _beside_transformers(places, write, part)
    return beside or Edit(write.line, before, after, why)


def in_its_place(write: Access) -> bool:
    """Does it change the module's own value, by one index at most that may make a copy?"""
    node = statements.target(write.statement)
    if isinstance(node, ast.Subscript):
        node = node.value
    while node is not write.node:
        if not isinstance(node, ast.Subscript) or not statements.views(node.slice):
            return False
        node = node.value
    return True


def _beside_transformers(places: Places, write: Access, part: Parting) -> Edit | None:
    """A write that does another thing for no known reason: what `hf` has in its place, and the line
    with the index, or the module, of `hf` where that is another one.
    """
    if not places.file.ported:
        return None
    theirs = Places(places.file, "hf", dual=False)
    name = _place_of(places, write)
    alike = [one for one in theirs.writes() if _place_of(theirs, one) == name]
    if not alike:
        return _at_another_module(places, write, theirs)
    own = counterpart(places, theirs, write)
    if own is None:
        return None
    before, line = places.file.line(write.line), theirs.file.line(own.line).strip()
    why = f"`hf` has in its place `{line}`, line {own.line}"
    if line == before.strip() or reads_the_same(write.statement, own.statement):
        why = f"it reads as line {own.line} of `hf`{_WHAT_ELSE.get(part.kind, '')}"
    after = _with_their_index(places, write, own) or _as_theirs(places, theirs, write, own)
    if not after and is_layer(write) and _writes_the_same(write.statement, own.statement):
        what = "place" if part.kind in {"other-layer", "elsewhere"} else "value"
        other = "" if part.kind == "dropped" else f": the {what} that it writes is another one"
        why = f"it writes the same as line {own.line} of `hf`{other}"
    return Edit(write.line, before, after, why)


def _writes_the_same(mine: ast.stmt, meant: ast.stmt) -> bool:
    """Do two writes have the same expression, and put it to the same index?"""
    sides = []
    for one in (mine, meant):
        target, value = statements.target(one), statements.value_of(one)
        index = target.slice if isinstance(target, ast.Subscript) else None
        sides.append((type(one), *(ast.dump(part) for part in (value, index) if part is not None)))
    return sides[0] == sides[1]


def _as_theirs(places: Places, theirs: Places, write: Access, own: Access) -> str:
    """The line that writes, as `hf` has it but for the batch axis; "" where it is that already, or
    where that is not known.
    """
    text = batch_axis.as_there(theirs, own.statement)
    before = places.file.line(write.line)
    alone = write.statement.lineno == write.statement.end_lineno == write.line
    if text is None or not alone or text == before.strip() or is_layer(write):
        return ""
    if not known_here(places, own.statement):
        return ""
    return before[: len(before) - len(before.lstrip())] + text


def counterpart(places: Places, theirs: Places, write: Access) -> Access | None:
    """The write of `hf` in the place of one here: the only one to such a module, or of as many on
    both sides the one that is as far down; None where it is not known.
    """
    name = _place_of(places, write)
    mine, meant = (
        [one for one in each.writes() if _place_of(each, one) == name] for each in (places, theirs)
    )
    at = [one for one in meant if one.layer == write.layer]
    if at:
        mine, meant = [one for one in mine if one.layer == write.layer], at
    if len(meant) == 1:
        return meant[0]
    same = len(mine) == len(meant)
    number = next((n for n, one in enumerate(mine) if one.statement is write.statement), None)
    return meant[number] if same and number is not None else None


def _place_of(places: Places, write: Access) -> str:
    """The module that a write changes something of, without numbers, and what of it."""
    last = kind_of(module_text(places, write)).rpartition(".")[2]
    named = re.sub(r"^(?:layers|h|blocks)\[\]$", "layer", last)
    return f"{named}.{write.value}"


def _at_another_module(places: Places, write: Access, theirs: Places) -> Edit | None:
    """A write to a module that `hf` does not write to: what it writes to that is not written here,
    with the line of `hf` where it holds here, too.
    """
    mine = {_place_of(places, one) for one in places.writes()}
    lacking = [one for one in theirs.writes() if _place_of(theirs, one) not in mine]
    named = [module_text(places, write), *(module_text(theirs, one) for one in lacking)]
    if len(lacking) != 1:
        return None
    [own] = lacking
    before, line = places.file.line(write.line), theirs.file.line(own.line).strip()
    here, there = (
        f"{in_layer(module)}.{one.value}" if "." in module else f"{module}.{one.value}"
        for module, one in zip(named, (write, own), strict=True)
    )
    why = f"it writes to `{here}`, and `hf` to `{there}`: `{line}`, line {own.line}"
    if not all("." in one for one in named):
        return Edit(write.line, before, "", why)
    if places.merged(write.module) or here == there:
        return Edit(write.line, before, "", f"`hf` has in its place `{line}`, line {own.line}")
    ours, meant = (statements.target(one.statement) for one in (write, own))
    values = (statements.value_of(one.statement) for one in (write, own))
    after = ""
    if ours is not None and meant is not None and known_here(places, meant):
        known = module_values.values(theirs.file.segment(meant), same=True)
        one, other = (ast.unparse(value) if value is not None else "" for value in values)
        whole = len(known) == 1 and known[0].before == theirs.file.segment(meant)
        if whole and known[0].kind == "plain" and one == other:
            after = replaced(places, ours, f"{known[0].place}{known[0].index}")
    return Edit(write.line, before, after, why)


def _with_their_index(places: Places, write: Access, own: Access) -> str:
    """The line that writes, with the index that `hf` has there; "" where it is the same, or where
    the value is another thing here.
    """
    mine, theirs = (statements.target(one.statement) for one in (write, own))
    if not (isinstance(mine, ast.Subscript) and isinstance(theirs, ast.Subscript)):
        return ""
    written, place = (places.file.operand(one.value) for one in (mine, theirs))
    index = places.file.segment(theirs).removeprefix(place)
    known = module_values.values(f"{own.module}.{own.value}{index}", same=True)
    if len(known) != 1 or known[0].kind != "plain":
        return ""
    after = f"{written}{known[0].index}"
    return replaced(places, mine, after) if after != places.file.segment(mine) else ""


def _one_token(write: Access, part: Parting) -> ast.expr | None:
    """The number with which a write begins its index, where it reached that token alone: on
    transformers it is the batch's first prompt.
    """
    target = statements.target(write.statement)
    index = target.slice if isinstance(target, ast.Subscript) else None
    first = index.elts[0] if isinstance(index, ast.Tuple) else index
    reached = set(range(part.total)) - set(part.tokens)
    number = first.value if isinstance(first, ast.Constant) else None
    return first if isinstance(number, int) and {number} == reached else None


def _of_the_step(places: Places, part: Parting, here: list[Access]) -> Edit | None:
    """A write that one side makes in this step and the other one does not, where the text says in
    which steps it is made: the line that says so.
    """
    roots = places.scopes.roots
    if part.kind in {"dropped", "partial"}:
        for write in here:
            found = steps.guard(roots, write.statement, part.step)
            if found is not None:
                before = places.file.line(found.lineno)
                why = f"this keeps the write of line {write.line} from step {part.step}"
                return Edit(found.lineno, before, _as_on_transformers(places, found), why)
        above = (above_the_loop(places, one) for one in here) if part.step else ()
        if (into := next((one for one in above if one is not None), None)) is not None:
            return into
    if part.kind != "elsewhere" or not places.file.ported:
        return None
    theirs = Places(places.file, "hf", dual=False)
    every = [one for one in theirs.writes() if one.layer in {None, here[0].layer}]
    kept = (steps.guard(theirs.scopes.roots, one.statement, part.step) for one in every)
    own = next((one for one in kept if one is not None), None)
    if own is None:
        return None
    why = f"`hf` does not write in step {part.step}: its line {own.lineno} keeps the write from it"
    condition = steps.condition(roots, here[0].statement)
    if condition is not None:
        after = _as_on_transformers(places, condition)
        return Edit(condition.lineno, places.file.line(condition.lineno), after, why)
    write, before = here[0], places.file.line(here[0].line)
    numbers = steps.numbers_of(roots, write.statement)
    after = ""
    if len(here) == 1 and isinstance(own, ast.If) and steps.names(own.test) <= numbers:
        indent = before[: len(before) - len(before.lstrip())]
        after = f"{indent}if {ast.unparse(own.test)}:\n    {before}"
    return Edit(write.line, before, after, why)


def _as_on_transformers(places: Places, found: steps.Guard) -> str:
    """The head of an `if` with the test that `hf` has for its own write, "" where it has none."""
    if not places.file.ported or not isinstance(found, ast.If):
        return ""
    theirs = Places(places.file, "hf", dual=False)
    tests = (steps.condition(theirs.scopes.roots, one.statement) for one in theirs.writes())
    test = next((one.test for one in tests if one is not None), None)
    return replaced(places, found.test, ast.unparse(test)) if test is not None else ""


def _without_token(places: Places, write: Access) -> tuple[ast.expr, str] | None:
    """The index of a write that takes one token, where transformers has the batch's first prompt:
    the expression, and the same for all tokens.
    """
    whole = places.file.segment(write.node)
    if places.dual and is_layer(write):
        target = statements.target(write.statement)
        for node in ast.walk(target) if target is not None else ():
            number = node.slice if isinstance(node, ast.Subscript) else None
            one_token = isinstance(number, ast.Constant) and isinstance(number.value, int)
            if isinstance(node, ast.Subscript) and node.value is write.node and one_token:
                return node, f"{whole}[:]"
        return None
    if write.index is None or write.node.lineno != write.line:
        return None
    whole_target = statements.target(write.statement) is write.node
    return write.node, f"{write.module}.{write.value}{'[:]' if whole_target else ''}"


def _pair(places: Places, write: Access, part: Parting) -> str:
    """A line that puts a pair in the place of a layer's two values: with the half that it leaves
    scaled as well, or set to zero.
    """
    pair = statements.value_of(write.statement)
    whole = statements.target(write.statement) is write.node and write.index is None
    if not whole or not isinstance(pair, ast.Tuple) or len(pair.elts) != 2:
        return ""
    left = pair.elts[1 if part.kind == "first-half" else 0]
    text = places.file.segment(left)
    if isinstance(left, ast.BinOp):
        text = f"({text})"
    return replaced(places, left, f"{text} * {part.gain or 0:.4g}")


def _both(places: Places, write: Access) -> str:
    """A write to a name that is bound to one of a layer's halves: the line, and what it lacks for
    the other one.
    """
    target = statements.target(write.statement)
    root = next((n for n in ast.walk(target or write.node) if isinstance(n, ast.Name)), None)
    made = places.scopes.binding(root.id, write.statement) if root else None
    bound = made.targets[0] if isinstance(made, ast.Assign) else None
    names = statements.names_of(bound)
    direct = target is not None and any(node is write.node for node in ast.walk(target))
    if root is None or target is None or direct or root.id not in names:
        return ""
    if len(names) == 2:
        other = names[1 - names.index(root.id)]
    elif write.index in {0, 1}:
        other = f"{write.module}.output[{1 - (write.index or 0)}]"
    else:
        return ""
    before = places.file.line(write.line)
    indent = before[: len(before) - len(before.lstrip())]
    index = places.file.segment(target).removeprefix(root.id) or "[:]"
    also = f"{other}{index} = 0"
    if statements.scales(write.statement):
        code = places.file.segment(write.statement)
        also = f"{other}{index}{code.removeprefix(places.file.segment(target))}"
    return f"{before}\n{indent}{also}"


def _root(write: Access) -> str:
    """The variable that a write changes something of."""
    target = statements.target(write.statement)
    return next((n.id for n in ast.walk(target or write.node) if isinstance(n, ast.Name)), "")


def _of_a_copy(places: Places, write: Access) -> Edit | None:
    """A write to a name that is bound to a copy: the line that copies, without that."""
    made = places.scopes.binding(_root(write), write.statement)
    if made is None:
        return None
    before, taken = places.file.line(made.lineno), places.accesses(made)
    copied = f"{places.file.segment(taken[0].node)}.clone()" if taken else ""
    if len(taken) == 1 and before.count(copied) == 1:
        after = before.replace(copied, copied.removesuffix(".clone()"))
        return Edit(made.lineno, before, after, f"{_COPY} (line {write.line} writes to it)")
    return None


def _of_a_sum(places: Places, write: Access) -> Edit | None:
    """A write to a name that is bound to a sum: what it changes is nothing of the model's."""
    root = _root(write)
    made = places.scopes.binding(root, write.statement)
    taken = places.sources(made) if made is not None else []
    value = statements.value_of(made) if made is not None else None
    if value is None or not taken or not statements.adds(value):
        return None
    return _put_back(places, write.statement, root, taken)


def _put_back(places: Places, statement: ast.stmt, name: str, taken: list[Access]) -> Edit:
    """The line that changes a copy, and the one that puts it where the forward goes on with it."""
    before = places.file.line(statement.lineno)
    module, after = taken[0].module, ""
    if is_layer(taken[0]) and places.dual:
        indent = before[: len(before) - len(before.lstrip())]
        first, rest = f"{module}.output[0]", f"{module}.output[1]"
        indices = {one.index for one in taken}
        if indices == {0}:
            pair = f"{name}, {rest}"
        elif indices == {1}:
            pair = f"{first}, {name}"
        else:
            pair = f"{name} - {rest}, {rest}"
        after = f"{before}\n{indent}{module}.output = ({pair})"
    return Edit(statement.lineno, before, after, _COPY)


def _second(writes: list[Access]) -> Access:
    return next((one for one in writes if one.index == 1), writes[-1])


def _writing(write: Access, before: str, kind: str, step: int) -> tuple[str, str]:
    if kind in {"first-half", "second-half"}:
        have, lack = (0, 1) if kind == "first-half" else (1, 0)
        mine = f"{write.module}.output[{have}]"
        other = f"{write.module}.output[{lack}]"
        indent = before[: len(before) - len(before.lstrip())]
        code = before.partition("#")[0].rstrip()
        scales = re.search(r"\*=|=\s*0(\.0)?$|zero_\(\)", code)
        if scales and mine in code:
            return f"{before}\n{code.replace(mine, other)}", _REPLACES
        target = code.strip().partition("=")[0].rstrip(" +-*/").replace(mine, other)
        target = target if other in target and target != other else f"{other}[:]"
        return f"{before}\n{indent}{target} = 0", _REPLACES
    if kind == "twice":
        return "", f"{_ONCE}, so leave this out"
    if kind in {"dropped", "partial"} and not step:
        return "", _COPY
    return "", ""
