"""From what a value holds, or what a write did, to the line that is to be changed, and how."""

from __future__ import annotations

import ast
import re

from conformance.check import statements
from conformance.check.identify import Held
from conformance.check.places import Access, Places
from conformance.check.writes import Parting
from conformance.records import record


@record()
class Edit:
    """One line of the user's file: as it is and as it should be, "" where only words help."""

    line: int
    before: str
    after: str = ""
    why: str = ""


#: What a layer of vLLM's returns a half of the stream as.
HALVES = ("mlp", "residual")

_VIEW = "what a trace keeps is a view of a live buffer, which later steps and layers overwrite"

_COPY = "a value that is only bound to a name, or copied first, does not go back"

_NO_BATCH = (
    "on vLLM there is no batch axis: activations are [tokens, width], and an index takes a token, "
    "not the batch's first prompt"
)

_SUM = "on vLLM this layer returns (MLP output, residual): the stream is their sum"


def read_edit(
    places: Places, name: str, held: Held | None, meant: Held | None = None
) -> Edit | None:
    """The line that reads this name, and the edit for what it holds instead of what is meant."""
    kind = held.kind if held else ""
    one_of_all = held and meant and (held.words, held.sequence) == (meant.words, meant.sequence)
    if held and held.at and meant and one_of_all and (meant.at or held.columns):
        return _row_edit(places, name, held, meant)
    statement = places.origin(name)
    if statement is None:
        return None
    accesses = [one for one in places.accesses(statement) if one.value in {"output", "input"}]
    if not accesses or (held and held.columns):
        statement = places.cut(name) or statement
        return Edit(statement.lineno, places.file.line(statement.lineno))
    access = accesses[0]
    if places.merged(access.module):
        statement = places.cut(name) or statement
        return Edit(statement.lineno, places.file.line(statement.lineno))
    before = places.file.line(access.line)
    if kind in HALVES and held and not (held.rows and one_of_all):
        cut = places.cut(name) if access.index is None else None
        if cut is not None:
            return Edit(cut.lineno, places.file.line(cut.lineno), "", _SUM if places.dual else "")
    after, why = _reading(places, access, kind, held.rows if held and one_of_all else "", meant)
    return Edit(access.line, before, _replaced(places, access, after), why)


def alias_edit(places: Places, name: str) -> Edit | None:
    """The line that keeps a view, with a copy of it."""
    statement = places.origin(name)
    if statement is None:
        return None
    before = places.file.line(statement.lineno)
    accesses = places.accesses(statement)
    if not accesses:
        return Edit(statement.lineno, before)
    after = f"{places.file.segment(accesses[0].node)}.clone()"
    return Edit(statement.lineno, before, _replaced(places, accesses[0], after), _VIEW)


def _row_edit(places: Places, name: str, held: Held, meant: Held) -> Edit | None:
    """Another token, or other columns: the line that takes them, with the right token's number."""
    statement = places.cut(name) or places.origin(name)
    if statement is None:
        return None
    before = places.file.line(statement.lineno)
    if held.columns or not (held.at and meant.at):
        return Edit(statement.lineno, before)
    (first, total), (right, _) = held.at, meant.at
    last = total - 1
    numbers = {first: right, first - total: right - total}
    for number, mended in numbers.items():
        wrong = rf"(?<=[\[, ]){number}(?=\])"
        if len(re.findall(wrong, before)) == 1:
            why = f"this is token {first} of 0 to {last}"
            return Edit(statement.lineno, before, re.sub(wrong, str(mended), before), why)
    return Edit(statement.lineno, before)


def _reading(
    places: Places, access: Access, kind: str, rows: str, meant: Held | None
) -> tuple[str, str]:
    module = access.module
    if kind in HALVES and not rows and places.dual and is_layer(access):
        return _stream(module, dual=True), _SUM
    if rows.startswith("token") and access.index is not None:
        return f"{module}.output", _NO_BATCH
    if kind == "positions":
        before = _shifted(module, -1)
        return (_stream(before, dual=places.dual) if before else ""), (
            "on vLLM a layer's first input is the positions; the stream before it is what the "
            "layer before returns"
        )
    if re.search(r"norm\w*$", module) and access.index in {0, 1} and meant is not None:
        other = f"{module}.{access.value}[{1 - access.index}]"
        return other, "on vLLM a norm that also adds returns (the normed, the sum)"
    return "", ""


def _stream(module: str, *, dual: bool) -> str:
    """How vLLM's layers hold the stream."""
    return f"({module}.output[0] + {module}.output[1])" if dual else f"{module}.output"


def is_layer(access: Access) -> bool:
    """Is it a layer's own output, not that of a part of it?"""
    return bool(re.search(r"(?:layers|\bh|blocks)\[[^\]]+\]$|^\w+$", access.module))


def suspect(places: Places, name: str) -> Edit | None:
    """Where a value that is not known is computed from half of a stream: the line, mended."""
    if not places.dual:
        return None
    for access in places.reads(name):
        others = [
            one.index for one in places.accesses(access.statement) if one.module == access.module
        ]
        if access.value == "output" and is_layer(access) and access.index in {0, 1}:
            if {0, 1} <= set(others):
                continue
            before = places.file.line(access.line)
            after = _replaced(places, access, _stream(access.module, dual=True))
            return Edit(access.line, before, after, _SUM)
    return None


def _shifted(module: str, by: int) -> str:
    match = re.search(r"(?<=layers\[)\d+|(?<=\.h\[)\d+", module)
    if match is None or int(match[0]) + by < 0:
        return ""
    return f"{module[: match.start()]}{int(match[0]) + by}{module[match.end() :]}"


def layer_edit(places: Places, name: str, by: int) -> Edit | None:
    """The line that reads a layer's neighbour, with the right number."""
    statement = places.origin(name)
    if statement is None:
        return None
    before = places.file.line(statement.lineno)
    for access in places.accesses(statement):
        right = _shifted(access.module, by)
        if right:
            why = f"this is layer {access.layer}"
            return Edit(statement.lineno, before, before.replace(access.module, right), why)
    return Edit(statement.lineno, before)


def _replaced(places: Places, access: Access, after: str) -> str:
    before = places.file.line(access.line)
    segment = places.file.segment(access.node)
    return before.replace(segment, after) if after and segment in before else ""


def write_edit(places: Places, part: Parting) -> Edit | None:
    """The line that writes at this layer, and the edit for what the write was seen to do."""
    writes = places.writes()
    layer = part.layer if part.written is None else part.written
    here = [one for one in writes if one.layer == layer]
    here = here or [one for one in writes if one.layer is None] or writes
    rebound = places.rebound(layer) if part.kind == "dropped" else None
    if rebound is not None and not any(one.layer == layer for one in writes):
        return _put_back(places, *rebound)
    if not here:
        return None
    write = _second(here) if part.kind == "twice" and len(here) > 1 else here[0]
    before = places.file.line(write.line)
    if part.written is not None and part.meant is not None:
        right = _shifted(write.module, part.meant - part.written)
        after = before.replace(write.module, right) if right else ""
        return Edit(write.line, before, after if after != before else "")
    takes_token = part.kind == "partial" and write.index is not None
    if takes_token and not (places.dual and is_layer(write)):
        after = _replaced(places, write, f"{write.module}.{write.value}")
        return Edit(write.line, before, after, _NO_BATCH)
    after, why = _writing(write, before, part.kind)
    return Edit(write.line, before, after, why)


def _put_back(places: Places, statement: ast.stmt, taken: list[Access]) -> Edit:
    """The line that changes a copy, and the one that puts it where the forward goes on with it."""
    before = places.file.line(statement.lineno)
    [name, *_] = statements.bound(statement)
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


def _writing(write: Access, before: str, kind: str) -> tuple[str, str]:
    if kind in {"first-half", "second-half"}:
        have, lack = (0, 1) if kind == "first-half" else (1, 0)
        mine = f"{write.module}.output[{have}]"
        other = f"{write.module}.output[{lack}]"
        indent = before[: len(before) - len(before.lstrip())]
        why = f"{_SUM}, so what replaces the stream must clear or scale both"
        code = before.partition("#")[0].rstrip()
        scales = re.search(r"\*=|=\s*0(\.0)?$|zero_\(\)", code)
        if scales and mine in code:
            return f"{before}\n{code.replace(mine, other)}", why
        target = code.strip().partition("=")[0].rstrip(" +-*/").replace(mine, other)
        target = target if other in target and target != other else f"{other}[:]"
        return f"{before}\n{indent}{target} = 0", why
    if kind == "twice":
        return "", f"{_SUM}: what is added to one of them is added to the stream, so leave this out"
    if kind in {"dropped", "partial"}:
        return "", _COPY
    return "", ""
