"""Where `vllm` counts a batch axis that is not there: an index, or an axis that is gone over.

On transformers a module's value is [1, tokens, width], and on vLLM [tokens, width]. What is meant
is known from what `hf` does with a value of the same module. Found in the text: nothing is run.
"""

from __future__ import annotations

import ast
import builtins
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace

from conformance.check.advice.edits import Edit, replaced
from conformance.check.parsing import statements
from conformance.check.parsing.dataflow import Access, Places
from conformance.check.parsing.module_values import ATTENTION, index_there, is_layer, of_axes
from conformance.check.parsing.row_wise import ALIKE, KEEPS, TORCH, Callees, applied
from conformance.check.parsing.source import UserFile

#: What is another thing there, in the words of an edit's reason.
AXIS = "on vLLM there is no batch axis, activations are [tokens, width]"

#: What a layer returns on transformers, in the words of an edit's reason.
DOUBLED = (
    "what a layer of this transformers returns is the stream itself, [batch, tokens, width]: "
    "`output[0]` is the batch's first prompt, [tokens, width], and an index behind it has no batch "
    "axis left"
)

#: Methods that go over an axis, by its number, and those whose first argument is no axis.
_OVER = frozenset(
    {
        *("mean", "sum", "norm", "max", "min", "amax", "amin", "argmax", "argmin", "prod", "std"),
        *("var", "median", "cumsum", "softmax", "log_softmax", "flip", "sort", "topk", "select"),
    }
)
_NAMED_ONLY = frozenset({"norm", "topk"})

#: Parts of the model that compute each token on its own when they are called with a value.
_EACH_ROW = r"(?:norm\w*|ln_\w+|lm_head|embed_out|mlp|\w+_proj|fc1|fc2|c_fc|c_proj)$"

#: The kind of what such a part, or a function, makes of a module's value.
_MADE = "made of {}"

#: What has other axes: of the head there are the last token's values alone.
_HEADS = frozenset({"lm_head", "embed_out", "model", "samples"})

_PAIR = (
    r"(?:norm\w*|o_proj|down_proj|out_proj|qkv_proj|gate_up_proj|dense|c_proj|c_attn|c_fc|fc1|fc2"
    r"|dense_h_to_4h|dense_4h_to_h|query_key_value)$"
)

#: What is in an index that does not take everything.
_TAKES = r"[^\[\]:, .]"

#: The kind of a layer's own value.
_STREAM = "layer"

#: How many variables are followed.
_HOPS = 8

#: What holds values by a number or a key.
_HOLDS = (ast.List, ast.ListComp, ast.Dict, ast.DictComp)

#: A part of a line, and the text for it.
Change = tuple[ast.expr, str]


@dataclass(frozen=True)
class Lost:
    """One line of `vllm` that counts the axis: the statement, and the line mended. `changes` are
    the parts of it that are other ones there, `kind` is what it takes them of.
    """

    statement: ast.stmt
    edit: Edit
    changes: tuple[Change, ...] = ()
    kind: str = ""


@dataclass(frozen=True)
class _Taken:
    """What is taken of a module's value: the module's `kind`, and all indices so far, as text.
    `several`: it is the tuple that the module returns, whose first index takes one of its values;
    or a list or mapping that the function itself fills with such values, where it is `held`.
    """

    kind: str
    index: str = ""
    several: bool = False
    held: bool = False

    @property
    def made(self) -> bool:
        """Is it what a call or a product makes of the module's value?"""
        return self.kind.startswith(_MADE.format(""))

    def into(self) -> _Taken:
        """What a call or a product makes of it."""
        return self if self.made else replace(self, kind=_MADE.format(self.kind))

    @property
    def one_prompt(self) -> bool:
        """Has the first prompt of the batch been taken?"""
        return of_axes(self.index)[0][:1] == ["0"]


@dataclass(frozen=True)
class _Indexed:
    """An index of such a value: `begin` is what it is taken of, `before` what had been taken of the
    module's value by then.
    """

    statement: ast.stmt
    node: ast.expr
    begin: ast.expr
    before: _Taken
    own: str

    @property
    def written(self) -> bool:
        """Is it what its statement changes?"""
        return statements.target(self.statement) is self.node


@dataclass(frozen=True)
class _Over:
    """A call that goes over an axis of such a value, and where it has the axis' number."""

    statement: ast.stmt
    taken: _Taken
    method: str
    axis: ast.Constant


def lost(places: Places, *, trusting: bool = False) -> list[Lost]:
    """Every place in `vllm` that counts the axis, in the order of the text; with `trusting` also
    where that hangs on functions of which the file has no text.
    """
    if not places.file.ported or not places.flat:
        return []
    theirs = _Side(Places(places.file, "hf", dual=False), trusting=trusting)
    mine = _Side(places, trusting=trusting)
    meant: dict[str, list[str]] = {}
    written: dict[str, list[str]] = {}
    for one in theirs.indexed():
        meant.setdefault(one.before.kind, []).append(one.before.index + one.own)
        if one.written:
            written.setdefault(one.before.kind, []).append(one.before.index + one.own)
    over = [one for one in theirs.over() if not one.taken.one_prompt]
    found: list[Lost] = []
    for one in mine.indexed():
        # What is written is beside what `hf` writes, where it does, and not beside its reads.
        alike = written.get(one.before.kind) if one.written else None
        every = meant.get(one.before.kind, [])
        edit = _index_edit(places, one, alike or every)
        if edit is None and alike and one.own in every:
            edit = _whole(places, one, alike)
        if edit is not None:
            found.append(edit)
    for each in mine.over():
        edit = _axis_edit(places, each, over, meant.get(each.taken.kind, []))
        if edit is not None:
            found.append(edit)
    lines = sorted({one.edit.line for one in found})
    return [_as_one(places, [one for one in found if one.edit.line == line]) for line in lines]


def perhaps(places: Places, line: int | None) -> Edit | None:
    """The place in `vllm` by which this line may have failed, that counts the axis of what a
    function makes of which the file has no text: itself, or the nearest above. No edit is sure.
    """
    known = {one.edit.line for one in lost(places)}
    found = [one for one in lost(places, trusting=True) if one.edit.line not in known]
    above = [one for one in found if line is not None and one.edit.line <= line]
    if not above:
        return None
    by = above[-1].kind.removeprefix(_MADE.format(""))
    why = f"{above[-1].edit.why}, if `{by}` leaves the axes as they are"
    return replace(above[-1].edit, after="", why=why)


def _as_one(places: Places, found: Sequence[Lost]) -> Lost:
    """One edit for all that is to be changed in a line, where all of it stands in this line."""
    first, line = found[0], places.file.line(found[0].edit.line)
    changes = {node.col_offset: (node, text) for one in found for node, text in one.changes}
    whole = all(node.lineno == node.end_lineno == first.edit.line for node, _ in changes.values())
    if len(found) == 1 or not whole or not all(one.edit.after for one in found):
        return first
    for _, (node, text) in sorted(changes.items(), reverse=True):
        line = statements.with_node(line, node, text)
    return replace(first, edit=replace(first.edit, after=line))


def doubled(theirs: Places) -> list[Lost]:
    """Every place in `hf` that takes an axis more of a layer's output than is left, as it takes the
    first of a tuple before, which a layer of this transformers does not return.
    """
    found: dict[int, Lost] = {}
    for one in _Side(theirs).indexed():
        index = one.before.index + one.own
        parts = _parts(index.removeprefix("[0]"))
        counts = len(parts) == 3 or (len(parts) == 2 and parts[0] in {":", "0"})
        if one.before.kind != _STREAM or not index.startswith("[0][") or not counts:
            continue
        edit = _undoubled(theirs, one)
        found.setdefault(edit.line, Lost(one.statement, edit))
    return [found[line] for line in sorted(found)]


def doubled_by(file: UserFile, name: str) -> Edit | None:
    """The first such place in the statements of `hf` that a value is computed by."""
    theirs = Places(file, "hf", dual=False)
    way = theirs.way(name)
    return next((one.edit for one in doubled(theirs) if one.statement in way), None)


def _undoubled(theirs: Places, one: _Indexed) -> Edit:
    """The line with the index of the whole batch, or else with that of its first prompt's rows."""
    right = one.own.removeprefix("[0]") if not one.before.index else ""
    right = right or index_there(one.own, "plain")
    after = replaced(theirs, one.node, f"{theirs.file.operand(one.begin)}{right}")
    line = one.begin.end_lineno or one.node.lineno
    return Edit(line, theirs.file.line(line), after, DOUBLED)


def as_there(theirs: Places, statement: ast.stmt) -> str | None:
    """A statement of `hf` on one line as it is on vLLM, without the batch axis; None where it is
    not known, or where more than an axis is another thing: a layer's output is a pair there.
    """
    side = _Side(theirs)
    taken = [one for one in side.indexed() if one.statement is statement]
    over = [one for one in side.over() if one.statement is statement]
    kinds = [*(one.before for one in taken), *(one.taken for one in over)]
    if any(one.kind == _STREAM or re.search(ATTENTION, one.kind) for one in kinds):
        return None
    changes: list[Change] = []
    for one in taken:
        if one.before.one_prompt:
            continue
        if one.before.index or of_axes(one.own)[0][:1] not in (["0"], [":"], ["..."]):
            return None
        index = index_there(one.own, "plain")
        changes.append((one.node, f"{theirs.file.operand(one.begin)}{index}"))
    for each in over:
        number = each.axis.value
        if each.taken.one_prompt or not isinstance(number, int) or number < 0:
            continue
        if not number:
            return None
        changes.append((each.axis, str(number - 1)))
    line = theirs.file.line(statement.lineno)
    for node, text in sorted(changes, key=lambda one: one[0].col_offset, reverse=True):
        line = statements.with_node(line, node, text)
    return line.strip() if line and statement.lineno == statement.end_lineno else None


def axes(theirs: Places) -> dict[int, int]:
    """The lines of `hf` that go over an axis by its number while the batch axis is there, with it:
    on vLLM it is another one.
    """
    return {
        one.axis.lineno: one.axis.value
        for one in _Side(theirs).over()
        if isinstance(one.axis.value, int)
        and one.axis.value >= 0
        and not one.taken.index.startswith("[0")
    }


def made_indices(theirs: Places, values: Collection[str] = ()) -> list[tuple[ast.expr, str | None]]:
    """What `hf` takes by an index of what it makes of a module's value, [1, tokens, ..]: the
    expression, and its text without a batch axis, None where that is not known. `values` are the
    names that hold a module's value itself.
    """
    found: list[tuple[ast.expr, str | None]] = []
    for one in _Side(theirs).indexed():
        as_it_is = isinstance(one.begin, ast.Attribute) or ast.unparse(one.begin) in values
        if as_it_is or one.before.one_prompt:
            continue
        known = of_axes(one.own)[0][:1] in (["0"], [":"], ["..."])
        text = f"{theirs.file.operand(one.begin)}{index_there(one.own, 'plain')}"
        found.append((one.node, text if known else None))
    return found


def of_one_prompt(theirs: Places) -> set[ast.stmt]:
    """The statements of `hf` that bind what is made of a module's value, and of that the batch's
    first prompt: as many axes as there.
    """
    side = _Side(theirs)
    return {
        one
        for one in theirs.scopes.statements
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name)
        for taken in [side.taken(one)]
        if taken is not None and taken.made and taken.one_prompt
    }


def read_by(places: Places, way: Collection[ast.stmt]) -> Edit | None:
    """The first such place in the statements that a value is computed by."""
    return next((one.edit for one in lost(places) if one.statement in way), None)


def written_by(places: Places, writes: Sequence[Access]) -> list[Edit]:
    """The writes that take the axis for another one, mended."""
    targets = [write.statement for write in writes]
    return [one.edit for one in lost(places) if one.statement in targets]


def _index_edit(places: Places, one: _Indexed, meant: Sequence[str]) -> Lost | None:
    """The line with the index that is meant, None where it is that."""
    inherited = _right(one.before, one.before.index, meant)
    if one.before.index and inherited != "":
        return None  # it is right, or is mended where it is taken
    right = _right(one.before, one.own, meant)
    if right is None:
        return None
    line = one.begin.end_lineno or one.node.lineno
    after = f"{places.file.operand(one.begin)}{right}"
    same = one.own in meant or one.own.removeprefix("[0]") in meant
    begin = "it reads as in `hf`, but " if same else ""
    why = f"{begin}{AXIS}: {_takes(one.before.kind, one.own)}"
    edit = Edit(line, places.file.line(line), replaced(places, one.node, after), why)
    return Lost(one.statement, edit, ((one.node, after),), one.before.kind)


def _whole(places: Places, one: _Indexed, meant: Sequence[str]) -> Lost | None:
    """The line of a write with the index of `hf`, where that writes everything, and takes a token
    by this one where it reads: columns may be meant by any other.
    """
    parts = _parts(one.own)
    everything = {each for each in meant if not re.search(_TAKES, each)}
    counts = len(parts) == 2 and parts[0] in {":", "0"} and not one.before.index
    if len(everything) != 1 or len({*meant}) != 1 or not counts or one.own in meant:
        return None
    if not re.search(_TAKES, one.own):
        return None
    [index] = everything
    right = index_there(index, "plain") or "[:]"
    text = f"{places.file.operand(one.begin)}{right}"
    line = one.begin.end_lineno or one.node.lineno
    why = f"{AXIS}: {_takes(one.before.kind, one.own)}, and `hf` writes `{index}`"
    edit = Edit(line, places.file.line(line), replaced(places, one.node, text), why)
    return Lost(one.statement, edit, ((one.node, text),), one.before.kind)


def _axis_edit(
    places: Places, one: _Over, over: Sequence[_Over], meant: Sequence[str]
) -> Lost | None:
    """The line that goes over the axis that is meant, None where it does."""
    number = one.axis.value
    mended = _right(one.taken, one.taken.index, meant) == ""
    alike = [
        each
        for each in over
        if (each.taken.kind, each.method, each.axis.value) == (one.taken.kind, one.method, number)
    ]
    same = bool(alike)
    # What `hf` goes over the same axis of is here what is left of it without the batch axis.
    taken = any(_with_batch(each.taken.index, one.taken.index) for each in alike)
    if (one.taken.index and not mended and not taken) or not isinstance(number, int) or number < 1:
        return None
    if not same and number < 2:
        return None
    begin = "it reads as in `hf`, but " if same else ""
    what = "the width" if number == 1 else "not there"
    why = f"{begin}{AXIS}: axis {number} is {what}"
    text, line = str(number - 1), places.file.line(one.axis.lineno)
    edit = Edit(one.axis.lineno, line, replaced(places, one.axis, text), why)
    return Lost(one.statement, edit, ((one.axis, text),), one.taken.kind)


def _with_batch(meant: str, own: str) -> bool:
    """Is an index of `hf` here this one, or the same, and is the batch axis left by it?"""
    return _parts(meant)[:1] == [":"] and own in {meant, index_there(meant, "plain")}


def _right(taken: _Taken, index: str, meant: Sequence[str]) -> str | None:
    """What an index should be there, by those that `hf` has; None where it is right."""
    there = {index_there(one, "plain") for one in meant}
    if index in there or not re.search(_TAKES, index):
        return None  # it is right, or takes everything
    if re.search(ATTENTION, taken.kind) and index.startswith("[0]"):
        rest = index.removeprefix("[0]")  # transformers returns a tuple
        return rest if rest in there else index_there(rest, "plain")
    if index in meant:
        return index_there(index, "plain")
    parts = _parts(index)
    if len(parts) == 3:
        return index_there(index, "plain")
    if len(parts) != 2 or parts[0] not in {":", "0"} or _is_no_token(parts[1], meant):
        return None
    token = {index_there(one, "plain") for one in meant if len(_parts(one)) == 2}
    return token.pop() if len(token) == 1 else None


def _is_no_token(taken: str, meant: Sequence[str]) -> bool:
    """May what is taken on the second axis be columns? `hf` takes some of such a value, and this
    is no token there.
    """
    every = list(map(_parts, meant))
    columns = any(len(one) == 3 and one[2] != ":" for one in every)
    return columns and taken not in {one[1] for one in every if len(one) > 1}


def _parts(index: str) -> list[str]:
    """What an index takes on each axis; [] for several indices."""
    first, behind = of_axes(index)
    return [] if behind else first


def _takes(kind: str, index: str) -> str:
    """What such an index takes there."""
    if re.search(ATTENTION, kind) and index.startswith("[0]"):
        return "attention returns one tensor, of which `[0]` takes token 0"
    parts = _parts(index)
    if len(parts) > 2:
        return f"`{index}` has an index too many"
    if len(parts) == 2 and parts[0] == ":":
        return f"`{index}` takes columns"
    if len(parts) == 2:
        return f"`{index}` takes numbers of token 0"
    return f"`{index}` takes a token, and not the batch's first prompt"


class _Side:
    """One of the two functions, as text. `trusting`: a function of which there is no text in the
    file is taken for one that leaves the axes as they are.
    """

    def __init__(self, places: Places, *, trusting: bool = False) -> None:
        self.places = places
        self.trusting = trusting
        self.callees = Callees(places.file.text, places.scopes)
        self.there = places.function.name == "vllm"

    def _nodes(self) -> Iterator[tuple[ast.stmt, ast.AST]]:
        for statement in self.places.scopes.statements:
            if not hasattr(statement, "body"):
                yield from ((statement, node) for node in ast.walk(statement))

    def indexed(self) -> Iterator[_Indexed]:
        """Every index of a module's value, all that stand behind each other as one."""
        inner = {id(node.value) for _, node in self._nodes() if isinstance(node, ast.Subscript)}
        for statement, node in self._nodes():
            if isinstance(node, ast.Subscript) and id(node) not in inner:
                found = self._index(statement, node)
                if found is not None:
                    yield found

    def _index(self, statement: ast.stmt, node: ast.Subscript) -> _Indexed | None:
        chain = [node]
        while isinstance(chain[-1].value, ast.Subscript):
            chain.append(chain[-1].value)
        begin = chain[-1].value
        before = self._taken(begin, statement, _HOPS)
        if before is None:
            return None
        if before.several:
            begin = chain.pop()
            before = self._taken(begin, statement, _HOPS)
            if before is None:
                return None
        own = "".join(f"[{self._text(one.slice)}]" for one in reversed(chain))
        return _Indexed(statement, node, begin, before, own)

    def _text(self, index: ast.expr) -> str:
        text = ast.unparse(index)
        return text[1:-1] if isinstance(index, ast.Tuple) and text.startswith("(") else text

    def over(self) -> Iterator[_Over]:
        """Every call that goes over a numbered axis of such a value."""
        for statement, node in self._nodes():
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            method, value, rest = node.func.attr, node.func.value, node.args
            if ast.unparse(value) in {"torch", "t", "F", "torch.nn.functional"} and rest:
                value, rest = rest[0], rest[1:]
            if method not in _OVER:
                continue
            axes = [one.value for one in node.keywords if one.arg in {"dim", "axis"}]
            axes += rest[:1] if method not in _NAMED_ONLY else []
            taken = self._taken(value, statement, _HOPS)
            if axes and isinstance(axes[0], ast.Constant) and taken and not taken.several:
                yield _Over(statement, taken, method, axes[0])

    def taken(self, statement: ast.Assign) -> _Taken | None:
        """What of a module's value a statement binds."""
        return self._taken(statement.value, statement, _HOPS)

    def _taken(self, value: ast.expr, near: ast.stmt, hops: int) -> _Taken | None:
        """What of a module's value an expression is, None where it is anything else."""
        if isinstance(value, ast.Attribute):
            return self._module(value, near)
        if isinstance(value, ast.Name):
            return self._variable(value.id, near, hops) if hops > 0 else None
        if isinstance(value, ast.Subscript):
            return self._row(value, near, hops)
        if isinstance(value, ast.BinOp):
            sides = [self._taken(one, near, hops - 1) for one in (value.left, value.right)]
            known = [one for one in sides if one is not None and not one.several]
            if len({one.index for one in known}) != 1:
                return None
            return known[0].into() if isinstance(value.op, ast.MatMult) else known[0]
        return self._call(value, near, hops) if isinstance(value, ast.Call) else None

    def _row(self, value: ast.Subscript, near: ast.stmt, hops: int) -> _Taken | None:
        taken = self._taken(value.value, near, hops - 1)
        if taken is None:
            return None
        if taken.held:
            return replace(taken, several=False, held=False)
        if taken.several:
            one = isinstance(value.slice, ast.Constant) and value.slice.value in {0, 1}
            return replace(taken, several=False) if one else None
        return replace(taken, index=f"{taken.index}[{self._text(value.slice)}]")

    def _call(self, call: ast.Call, near: ast.stmt, hops: int) -> _Taken | None:
        if isinstance(call.func, ast.Attribute) and call.func.attr in KEEPS:
            return self._taken(call.func.value, near, hops - 1)
        made = self._made(call, near, hops)
        if made is not None:
            return made
        if ast.unparse(call.func) == "sum" and len(call.args) == 1:
            taken = self._taken(call.args[0], near, hops - 1)
            return replace(taken, several=False) if taken is not None and taken.several else None
        return None

    def _made(self, call: ast.Call, near: ast.stmt, hops: int) -> _Taken | None:
        """What a call makes of such a value that leaves the axes before the last as they are: a
        part of the model that computes each token on its own, or a function of each number.
        """
        callee = self.callees.of(call.func, near)
        name, given = applied(call)
        several = False
        if callee is not None:
            given = self.callees.given(callee, call)
        elif name not in ALIKE:
            if not re.search(_EACH_ROW, self._called(call.func, near)) or len(call.args) != 1:
                return self._trusted(call, near, hops) if self.trusting else None
            given = call.args[0]
            pair = re.search(_PAIR, name) and not re.search(r"norm|^ln_", name)
            several = self.there and bool(pair)
        taken = self._taken(given, near, hops - 1) if given is not None else None
        if taken is None or taken.several:
            return None
        return replace(taken.into(), several=several)

    def _trusted(self, call: ast.Call, near: ast.stmt, hops: int) -> _Taken | None:
        """What a function makes of such a value, of which nothing but its name is known."""
        name = ast.unparse(call.func)
        root = name.partition(".")[0]
        if root in TORCH or root in dir(builtins) or len(call.args) != 1:
            return None
        if isinstance(call.func, ast.Attribute) and self._taken(call.func.value, near, hops - 1):
            return None  # a method of the value itself
        taken = self._taken(call.args[0], near, hops - 1)
        return replace(taken, kind=_MADE.format(name)) if taken and not taken.several else None

    def _called(self, function: ast.expr, near: ast.stmt) -> str:
        """A part of the model that is called, by its path, also where a variable holds it."""
        if isinstance(function, ast.Name):
            made = self.places.scopes.binding(function.id, near)
            held = made.value if isinstance(made, ast.Assign) else None
            return ast.unparse(held) if isinstance(held, ast.Attribute) else ""
        return ast.unparse(function) if isinstance(function, ast.Attribute) else ""

    def _variable(self, name: str, near: ast.stmt, hops: int) -> _Taken | None:
        made = self.places.scopes.binding(name, near)
        if not isinstance(made, ast.Assign) or made is near:
            return None
        if self.there and isinstance(statements.kept(made.value), _HOLDS):
            return self._held(name, made, near, hops)
        taken = self._taken(made.value, made, hops - 1)
        if isinstance(made.targets[0], ast.Name) or taken is None:
            return taken
        return replace(taken, several=False) if taken.several else None

    def _held(self, name: str, made: ast.Assign, near: ast.stmt, hops: int) -> _Taken | None:
        """What a list or a mapping is filled with, where that is one thing."""
        whole = statements.kept(made.value)
        put: list[tuple[ast.expr, ast.stmt]] = []
        put += [(whole.elt, made)] if isinstance(whole, ast.ListComp) else []
        put += [(whole.value, made)] if isinstance(whole, ast.DictComp) else []
        put += [(one, made) for one in whole.elts] if isinstance(whole, ast.List) else []
        put += [
            (value, one)
            for one in self.places.scopes.makers(name, near)
            if one is not made and (value := statements.value_of(one)) is not None
        ]
        taken = {self._taken(value, one, hops - 1) for value, one in put}
        only = taken.pop() if len(taken) == 1 else None
        return replace(only, several=True, held=True) if only and not only.several else None

    def _module(self, value: ast.Attribute, near: ast.stmt) -> _Taken | None:
        """A module's value as it is."""
        if value.attr not in {"output", "input"}:
            return None
        path = ast.unparse(value.value)
        if isinstance(value.value, ast.Name):
            made = self.places.scopes.binding(path, near)
            bound = ast.unparse(made.value) if isinstance(made, ast.Assign) else "layers[0]"
            path = bound if re.fullmatch(r"[\w.\[\]]+", bound) else path
        last = _STREAM if is_layer(path) else path.rpartition(".")[2]
        if last in _HEADS or (last == _STREAM and value.attr == "input"):
            return None
        pair = last == _STREAM and self.places.dual
        several = pair or (value.attr == "output" and bool(re.search(_PAIR, last)))
        if not self.there:
            several = value.attr == "output" and bool(re.search(ATTENTION, last))
        return _Taken(f"{last}.{value.attr}" if value.attr == "input" else last, "", several)
