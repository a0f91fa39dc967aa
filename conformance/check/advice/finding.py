"""One thing that differs, and the line that mends it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from conformance.check.advice.edits import Edit
from conformance.records import record
from conformance.shortening import few

#: The kind of a value that a part of the model is left out of, or that has another one.
LEFT_OUT = "left-out"

#: So many values are named beside the first one that has the same edit.
_NAMED = 6


@record()
class Finding:
    """One thing that differs. `kind` is for programs, `name` the user's own for the value."""

    kind: str
    words: str
    name: str = ""
    layer: int | None = None
    step: int = 0
    prompt: int = 0
    edit: Edit | None = None


def once(told: Sequence[Finding]) -> tuple[Finding, ...]:
    """Values that one edit mends, or to which one line gives another part of the model: it is shown
    with the first of them, which names the others.
    """
    found: dict[object, list[Finding]] = {}
    for number, one in enumerate(told):
        mended = one.edit is not None and (bool(one.edit.after) or one.kind == LEFT_OUT)
        found.setdefault((one.kind, one.edit) if mended else number, []).append(one)
    return tuple(_with(first, others) for first, *others in found.values())


def _with(first: Finding, others: Sequence[Finding]) -> Finding:
    named = dict.fromkeys(one.name for one in others if one.name not in {"", first.name})
    if not named:
        return first  # what has no name is the same line once more
    names = few((f"`{name}`" for name in named), _NAMED)
    same = "The same edit is for" if first.edit and first.edit.after else "The same line is behind"
    return replace(first, words=f"{first.words}. {same} {names}")
