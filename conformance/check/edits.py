"""From what a value holds, or what a write did, to the line that is to be changed, and how."""

from __future__ import annotations

import re

from conformance.check.places import Access, Places
from conformance.records import record


@record()
class Edit:
    """One line of the user's file: as it is and as it should be, "" where only words help."""

    line: int
    before: str
    after: str = ""
    why: str = ""


_SUM = "on vLLM this layer returns (MLP output, residual): the stream is their sum"


def read_edit(places: Places, name: str, kind: str, rows: str = "") -> Edit | None:
    """The line that reads this name, and the edit for what it was seen to hold: `kind` of value,
    and which of the right value's rows where it is some of those.
    """
    statement = places.origin(name)
    if statement is None:
        return None
    before = places.file.line(statement.lineno)
    accesses = places.accesses(statement)
    access = next((one for one in accesses if one.value in {"output", "input"}), None)
    if access is None:
        return Edit(statement.lineno, before)
    after, why = _reading(places, access, kind, rows)
    return Edit(statement.lineno, before, _replaced(places, access, after), why)


def _reading(places: Places, access: Access, kind: str, rows: str) -> tuple[str, str]:
    module, segment = access.module, places.file.segment(access.node)
    if kind in {"mlp", "residual"} and not rows:
        return f"({module}.output[0] + {module}.output[1])", _SUM
    if rows.startswith("token") and access.index is not None:
        return f"{module}.output", (
            "on vLLM there is no batch axis: activations are [tokens, width], and an index takes "
            "a token, not the batch's first prompt"
        )
    if kind == "positions":
        before = _shifted(module, -1)
        return (f"({before}.output[0] + {before}.output[1])" if before else ""), (
            "on vLLM a layer's first input is the positions; the stream before it is what the "
            "layer before returns"
        )
    if kind == "alias":
        return f"{segment}.clone()", (
            "what a trace keeps is a view of a live buffer, which later steps and layers overwrite"
        )
    return "", ""


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


def write_edit(places: Places, layer: int, kind: str) -> Edit | None:
    """The line that writes at this layer, and the edit for what the write was seen to do."""
    writes = places.writes()
    here = [one for one in writes if one.layer == layer]
    here = here or [one for one in writes if one.layer is None] or writes
    if not here:
        return None
    write = _second(here) if kind == "twice" and len(here) > 1 else here[0]
    before = places.file.line(write.line)
    after, why = _writing(write, before, kind)
    return Edit(write.line, before, after, why)


def _second(writes: list[Access]) -> Access:
    return next((one for one in writes if one.index == 1), writes[-1])


def _writing(write: Access, before: str, kind: str) -> tuple[str, str]:
    if kind in {"first-half", "second-half"}:
        have, lack = (0, 1) if kind == "first-half" else (1, 0)
        mine = f"{write.module}.output[{have}]"
        other = f"{write.module}.output[{lack}]"
        indent = before[: len(before) - len(before.lstrip())]
        why = f"{_SUM}, so what replaces the stream must clear or scale both"
        scales = re.search(r"\*=|=\s*0(\.0)?\s*$|zero_\(\)", before)
        if scales and mine in before:
            return f"{before}\n{before.replace(mine, other)}", why
        target = before.strip().partition("=")[0].rstrip(" +-*/").replace(mine, other)
        target = target if other in target and target != other else f"{other}[:]"
        return f"{before}\n{indent}{target} = 0", why
    if kind == "twice":
        return "", f"{_SUM}: what is added to one of them is added to the stream, so leave this out"
    if kind in {"dropped", "partial"}:
        return "", "a value that is only bound to a name, or copied first, does not go back"
    return "", ""
