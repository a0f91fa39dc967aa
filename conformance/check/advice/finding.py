"""One thing that differs, and the line that mends it."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from dataclasses import replace

from conformance.check.advice.edits import Edit
from conformance.records import record
from conformance.shortening import few

#: The kind of a value that a part of the model is left out of, or that has another one.
LEFT_OUT = "left-out"

#: The kind of a value of which no more is known than the line that `hf` has otherwise.
UNLIKE_LINE = "unlike-line"

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
    """Values that one edit mends, or that one line makes with another part of the model, or as
    another value: it is shown with the first of them, which names the others.
    """
    found: dict[object, list[Finding]] = {}
    for number, one in enumerate(told):
        alone = one.kind in {LEFT_OUT, UNLIKE_LINE}
        mended = one.edit is not None and (alone or bool(one.edit.after))
        found.setdefault((one.kind, one.edit) if mended else number, []).append(one)
    return tuple(_with(first, others) for first, *others in found.values())


def as_python(text: str, told: Sequence[Finding]) -> tuple[Finding, ...]:
    """The same, without an edit that would leave the file's text no Python: the line is shown."""
    return tuple(
        replace(one, edit=replace(one.edit, after=""))
        if one.edit is not None and one.edit.after and not _parses(text, one.edit)
        else one
        for one in told
    )


def _parses(text: str, edit: Edit) -> bool:
    lines = text.splitlines()
    first, last = edit.line - 1, edit.line - 1 + len(edit.before.splitlines())
    try:
        ast.parse("\n".join([*lines[:first], *edit.after.splitlines(), *lines[last:]]))
    except (SyntaxError, ValueError):
        return False
    return True


def _with(first: Finding, others: Sequence[Finding]) -> Finding:
    named = dict.fromkeys(one.name for one in others if one.name not in {"", first.name})
    if not named:
        return first  # what has no name is the same line once more
    names = few((f"`{name}`" for name in named), _NAMED)
    same = "The same edit is for" if first.edit and first.edit.after else "The same line is behind"
    return replace(first, words=f"{first.words}. {same} {names}")
