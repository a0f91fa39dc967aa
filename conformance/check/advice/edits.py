"""From what a value holds, or what a write did, to the line that is to be changed, and how."""

from __future__ import annotations

import ast
import re

from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Access, Places
from conformance.check.parsing.returned_expressions import returned
from conformance.check.values.identify import Held
from conformance.records import record


@record()
class Edit:
    """A line of the user's file, or some from it on: as they are and as they should be, "" where
    only words help.
    """

    line: int
    before: str
    after: str = ""
    why: str = ""


#: What a layer of vLLM's returns a half of the stream as.
HALVES = ("mlp", "residual")

#: And what its norms are given one half as.
_GIVEN = (*HALVES, "attention")

_VIEW = "what a trace keeps is a view of a live buffer, which later steps and layers overwrite"

NO_BATCH = (
    "on vLLM there is no batch axis: activations are [tokens, width], and an index takes a token, "
    "not the batch's first prompt"
)

SUM = "on vLLM this layer returns (MLP output, residual): the stream is their sum"

#: What the logits are there.
LAST_LOGITS = "on vLLM `model.logits` are the last token's, [1, vocabulary]: no index takes a token"

GIVEN = "on vLLM this norm is given (a layer's last output, residual): the stream is their sum"


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
    accesses = [one for one in places.reads_in(statement, name) if one.value != "stream"]
    norm = norm_edit(places, name) if kind in _GIVEN and held and not held.columns else None
    if norm is not None:
        return norm
    if not accesses or (held and held.columns) or places.merged(accesses[0].module):
        line = places.cut(name) or statement.lineno
        return Edit(line, places.file.line(line))
    access = accesses[0]
    before = places.file.line(access.line)
    if kind in HALVES and held and not (held.rows and one_of_all):
        half = by_adapter(places, access) or _half_of_two(places, name, statement, access)
        if half is not None:
            return half
    after, why = _reading(places, access, kind, held.rows if held and one_of_all else "", meant)
    return Edit(access.line, before, replaced(places, access.node, after), why)


def by_adapter(places: Places, access: Access) -> Edit | None:
    """A layer of `trace(lm)` that is read as the engine has it, as the adapter gives it."""
    number = re.search(r"(?:layers|h|blocks)(\[[^\[\]]+\])$", access.module)
    adapter = places.function.args.args[0].arg
    raw = access.value == "output" and access.module.startswith(f"{adapter}.")
    if places.file.ported or number is None or not raw:
        return None
    stream = f"{adapter}.layers{number[1]}.stream"
    before = places.file.line(access.line)
    why = f"what a layer returns is another thing on every engine, and `{stream}` is not"
    return Edit(access.line, before, replaced(places, access.node, stream), why)


def _half_of_two(places: Places, name: str, statement: ast.stmt, access: Access) -> Edit | None:
    """A layer's two values are bound to names, or to one, and later one of them is used: there."""
    if access.index is not None:
        return None
    target = statement.targets[0] if isinstance(statement, ast.Assign) else None
    own = statements.value_of(statement)
    why = SUM if places.dual else ""
    for part in reversed(places.parts(name)):
        halves = places.halves(part, statement) if part is not own else {}
        if len(halves) == 1 and target is not None:
            [node] = halves.values()
            before = places.file.line(node.lineno)
            both = statements.sum_of(target)
            after = statements.with_node(before, node, both) if places.dual else ""
            return Edit(node.lineno, before, after, why)
    cut = places.cut(name)
    return Edit(cut, places.file.line(cut), "", why) if cut else None


def logits_edit(places: Places, name: str) -> Edit | None:
    """The line that takes the last token of logits that are the last token's alone."""
    statement = places.origin(name)
    before = places.file.line(statement.lineno) if statement else ""
    after = re.sub(r"(\.logits)\[(?::|0), -1(?:, :)?\]", r"\1", before)
    if statement is None or after == before:
        return None
    return Edit(statement.lineno, before, after, LAST_LOGITS)


def alias_edit(places: Places, name: str) -> Edit | None:
    """The line that keeps a view, with a copy of it."""
    statement = places.origin(name)
    if statement is None:
        return None
    accesses = places.reads_in(statement, name)
    line = accesses[0].line if accesses else statement.lineno
    before = places.file.line(line)
    if not accesses:
        return Edit(line, before)
    pair = accesses[0].index is None and places.dual and is_layer(accesses[0])
    if pair or statements.names_of(getattr(statement, "targets", [None])[0])[1:]:
        return Edit(line, before, "", _VIEW)  # of two values: which is kept?
    after = f"{places.file.segment(accesses[0].node)}.clone()"
    return Edit(line, before, replaced(places, accesses[0].node, after), _VIEW)


def _row_edit(places: Places, name: str, held: Held, meant: Held) -> Edit | None:
    """Another token, or other columns: the line that takes them, with the right token's number."""
    statement = places.origin(name)
    line = places.cut(name) or (statement.lineno if statement else 0)
    if not line:
        return None
    before = places.file.line(line)
    if held.columns or not (held.at and meant.at):
        return Edit(line, before)
    (first, total), (right, _) = held.at, meant.at
    last = total - 1
    numbers = {first: -1 if right == last else right, first - total: right - total}
    for number, mended in numbers.items():
        wrong = rf"(?<=[\[, ]){number}(?=\])"
        if len(re.findall(wrong, before)) == 1:
            why = f"this is token {first} of 0 to {last}"
            return Edit(line, before, re.sub(wrong, str(mended), before), why)
    return Edit(line, before)


def _reading(
    places: Places, access: Access, kind: str, rows: str, meant: Held | None
) -> tuple[str, str]:
    module = access.module
    if kind in HALVES and not rows and places.dual and is_layer(access):
        return _stream(module, dual=True), SUM
    if rows.startswith("token") and access.index is not None:
        return f"{module}.output", NO_BATCH
    if kind == "positions":
        before = shifted(module, -1)
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


def norm_edit(places: Places, name: str) -> Edit | None:
    """Where a norm's first input is read, which is half of the stream before it: the line, with the
    sum of what the norm is given.
    """
    if not places.dual:
        return None
    for access in places.reads(name):
        before, given = places.file.line(access.line), f"{access.module}.inputs[0]"
        if not is_norm_input(access) or f"sum({given})" in before:
            continue
        first = f"{given}[0]" if access.value == "inputs" else f"{access.module}.input"
        after = before.replace(first, f"sum({given})", 1)
        return Edit(access.line, before, after if after != before else "", GIVEN)
    return None


def is_norm_input(access: Access) -> bool:
    """Is it what a norm is given?"""
    norm = re.search(r"(?:norm\w*|\bln_\w+)$", access.module)
    return access.value in {"input", "inputs"} and norm is not None


def is_layer(access: Access) -> bool:
    """Is it a layer's own output, not that of a part of it?"""
    return bool(re.search(r"(?:layers|\bh|blocks)\[[^\]]+\]$|^\w+$", access.module))


def before_layers(access: Access) -> bool:
    """Is it what the first layer is given, or the embeddings that this comes from?"""
    if re.search(r"(?:^|\.)(?:\w*embed\w*|wte|wpe)$", access.module):
        return True
    return access.layer == 0 and is_layer(access) and access.value in {"input", "inputs"}


def suspect(places: Places, name: str) -> Edit | None:
    """Where a value that is not known is computed from half of a stream: the line, mended."""
    if not places.dual:
        return None
    for access in places.reads(name):
        if access.value != "output" or not is_layer(access):
            continue
        half = _half_of_two(places, name, access.statement, access)
        if half is not None and half.after:
            return half
        if access.index in {0, 1}:
            if {0, 1} <= _read_together(places, access):
                continue
            before = places.file.line(access.line)
            after = replaced(places, access.node, _stream(access.module, dual=True))
            return Edit(access.line, before, after, SUM)
    return None


def _read_together(places: Places, access: Access) -> set[int | None]:
    """Which halves of a module's value come together with one that is read: in its statement, in
    what that uses, or alone in what is used beside it further on.
    """
    own = access.statement
    behind = [own, *_used(places, own)]
    found = {one.index for each in behind for one in _of_module(places, each, access)}
    users = [
        one for one in places.scopes.statements if one is not own and own in _used(places, one)
    ]
    for statement in (each for user in users for each in (user, *_used(places, user))):
        indices = {one.index for one in _of_module(places, statement, access)}
        found |= indices if len(indices) == 1 else set()
    return found


def _of_module(places: Places, statement: ast.stmt, access: Access) -> list[Access]:
    return [one for one in places.accesses(statement) if one.module == access.module]


def _used(places: Places, statement: ast.stmt) -> list[ast.stmt]:
    """The statements that bind what a statement uses."""
    if hasattr(statement, "body"):
        return []
    changed = isinstance(statement, ast.AugAssign)
    names = {
        one.id
        for one in ast.walk(statement)
        if isinstance(one, ast.Name) and (changed or isinstance(one.ctx, ast.Load))
    }
    made = (one for name in names for one in places.scopes.makers(name, statement))
    return [one for one in made if one is not statement]


def token_edit(places: Places, name: str) -> Edit | None:
    """Where a value that is not known takes token 0, and transformers' does not: the line."""
    if not places.file.ported:
        return None
    mine, theirs = _rows_taken(places, name), _rows_taken(Places(places.file, "hf"), name)
    rows = _numbers(theirs)[1:] if theirs else []
    if mine is None or _numbers(mine)[0] != 0 or rows[:1] == [0]:
        return None
    return Edit(mine.slice.lineno, places.file.line(mine.slice.lineno), "", NO_BATCH)


def _rows_taken(places: Places, name: str) -> ast.Subscript | None:
    """The last index on the way to this name that takes rows, and no module or half of a stream."""
    for part in places.parts(name):
        for node in ast.walk(part):
            if not isinstance(node, ast.Subscript) or not statements.takes(node.slice):
                continue
            if not (isinstance(node.value, ast.Attribute) and isinstance(node.slice, ast.Constant)):
                return node
    return None


def _numbers(node: ast.Subscript) -> list[int | None]:
    """What an index takes on each axis, None for all that is no number."""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    values = (part.value if isinstance(part, ast.Constant) else None for part in parts)
    return [value if isinstance(value, int) else None for value in values]


def shifted(module: str, by: int) -> str:
    """A module's text with the layer so many further on, "" where no number is written out."""
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
    for access in places.reads_in(statement, name):
        right = shifted(access.module, by)
        if right:
            line = places.file.line(access.line)
            why = f"this is layer {access.layer}"
            return Edit(access.line, line, line.replace(access.module, right), why)
    return Edit(statement.lineno, before)


def swapped(places: Places, one: str, other: str) -> Edit | None:
    """The line that returns a variable under the name `one`, with that which is returned as
    `other`; None where they are no two variables.
    """
    mine, its = (returned(places.scopes, name) for name in (one, other))
    if not isinstance(mine, ast.Name) or not isinstance(its, ast.Name) or mine.id == its.id:
        return None
    before = places.file.line(mine.lineno)
    after = replaced(places, mine, places.file.segment(its))
    if mine.lineno == its.lineno:
        pairs = sorted(((mine, its), (its, mine)), key=lambda pair: -pair[0].col_offset)
        after = before
        for place, text in pairs:
            after = statements.with_node(after, place, places.file.segment(text))
    return Edit(mine.lineno, before, after)


def replaced(places: Places, node: ast.expr, after: str) -> str:
    """The line of an expression with this in its place."""
    before = places.file.line(node.lineno)
    return statements.with_node(before, node, after) if after else ""
