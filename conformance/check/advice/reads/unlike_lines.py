"""The line that the wrong values alone are computed by, and that `hf` has otherwise.

What is right tells where nothing is wrong: a statement on the way to a value that is the same on
both sides is not suspected, and of those that are left the ones on the way to every wrong value are
looked at first (spectrum-based fault localization: Jones, Harrold, Stasko, "Visualization of test
information to assist fault localization", ICSE 2002). A statement of `hf` stands beside one of
`vllm` where it makes the same variable.
"""

from __future__ import annotations

import ast
import copy
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from conformance.check.advice.edits import Edit, replaced
from conformance.check.advice.reads.computed_values import known_here
from conformance.check.parsing import indices, module_values, statements
from conformance.check.parsing.containers import empty
from conformance.check.parsing.dataflow import READ, Places

#: What makes a value.
_COMPARED = (ast.Assign, ast.AnnAssign, ast.AugAssign, ast.Expr)


#: A prompt's last logits on transformers, `model.logits` on vLLM.
_LAST_LOGITS = re.compile(r"\b(\w+)\.(?:lm_head|embed_out)\.output\[[^\[\],]+, -1\]")

#: Methods that the model is given a prompt by.
_GIVES = frozenset({"trace", "generate", "invoke"})

#: So many parts an expression that makes a list or a mapping has where there is something in it.
_FILLED = 2


@dataclass(frozen=True)
class UnlikeLine:
    """A line of `vllm`, mended where that is sure, and in words what `hf` has in its place. `sure`:
    no other axes and no other reading of the model explain that it reads otherwise.
    """

    words: str
    edit: Edit
    sure: bool


@dataclass(frozen=True)
class _Pair:
    """A statement, and the one of `hf` that makes the same."""

    mine: ast.stmt
    meant: ast.stmt
    sure: bool
    #: Is the one of `hf` a further one, which `vllm` has not?
    added: bool = False


def unlike_lines(
    places: Places, name: str, wrong: Collection[str], right: Collection[str]
) -> list[UnlikeLine]:
    """Where `vllm` computes a wrong value otherwise than `hf`: on the way to all that is `wrong`,
    else on its own, and, where there is such a line, not on the way to what is `right`. Several
    lines only where all are sure.
    """
    if not places.file.ported:
        return []
    theirs = Places(places.file, places.file.function_for("hf"), dual=False)
    clear = {one for each in right for one in _way(places, each)}
    way = _way(places, name)
    own = [one for one in way if one not in clear]
    shared = [one for one in own if all(one in _way(places, each) for each in wrong)]
    for suspected in (shared, own, way):
        pairs = [pair for one in suspected if (pair := _pair(places, theirs, one)) is not None]
        sure = [pair for pair in pairs if pair.sure]
        # What is right may be so in spite of another line: a projection has no sign.
        if sure or (len(pairs) == 1 and suspected is not way):
            return [_told(places, theirs, pair) for pair in sure or pairs]
    return []


def beside(places: Places, theirs: Places, mine: ast.stmt, meant: ast.stmt) -> UnlikeLine | None:
    """A statement and the one of `hf` that stands for it, where it is sure that it says another
    thing; None else.
    """
    pair = _compared(places, theirs, mine, meant)
    return _told(places, theirs, pair) if pair is not None and pair.sure else None


def _way(places: Places, name: str) -> list[ast.stmt]:
    """The statements that a name is computed by, and the loops around them."""
    way = places.way(name)
    around = [
        one
        for one in places.scopes.statements
        if isinstance(one, ast.For) and any(node in way for node in ast.walk(one))
    ]
    return list(dict.fromkeys([*way, *around]))


def _pair(places: Places, theirs: Places, mine: ast.stmt) -> _Pair | None:
    """A statement beside the one of `hf` that makes the same variable, where that reads otherwise;
    None where there is none, or it says the same.
    """
    made = _makes(mine)
    ours, other = (
        [one for one in _own(each) if _makes(one) == made and not _makes_empty(one)]
        for each in (places, theirs)
    )
    if made is None or mine not in ours:
        return None
    if len(ours) != len(other):
        pair = _lacking(mine, (ours, other))
        added = [(pair.mine, pair.meant)] if pair is not None else []
        return pair if _same_names(places, theirs, added) else None
    return _compared(places, theirs, mine, other[ours.index(mine)])


def _compared(places: Places, theirs: Places, mine: ast.stmt, meant: ast.stmt) -> _Pair | None:
    """Two statements that stand for each other, None where they say the same."""
    own, its = _computed(mine), _computed(meant)
    if _other_keys(mine, meant):
        parts: list[tuple[ast.AST, ast.AST]] = [(mine, meant)]
        return _Pair(mine, meant, _same_names(places, theirs, parts))
    if own is None or its is None or _reads_the_same(own, its):
        return None
    if isinstance(mine, ast.For):
        others = isinstance(meant, ast.For) and goes_over_others(mine, meant)
        sure = others and _same_names(places, theirs, [(own, its)])
        return _Pair(mine, meant, sure)
    parts = list(_differing(_without_axes(places, own), _without_axes(theirs, its)))
    told = [one for one in parts if not any(map(_reads, one))]
    sure = bool(told) and _same_names(places, theirs, parts)
    return _Pair(mine, meant, sure or _reads_others(own, its))


def _makes_empty(statement: ast.stmt) -> bool:
    """Does it make lists or mappings of nothing, which are filled later?"""
    value = statements.value_of(statement) if isinstance(statement, ast.Assign) else None
    if value is None:
        return False
    parts = value.elts if isinstance(value, ast.Tuple) else [value]
    made = [statements.kept(one) for one in parts]
    return all(empty(one) and len([*ast.iter_child_nodes(one)]) < _FILLED for one in made)


def _same_names(places: Places, theirs: Places, parts: Sequence[tuple[ast.AST, ast.AST]]) -> bool:
    """Are all variables in these parts variables on both sides? Else one of them computes the same
    in another way, or under other names.
    """
    mine, meant = (
        {one.id for one in ast.walk(each.function) if isinstance(one, ast.Name)}
        for each in (places, theirs)
    )
    used = {
        one.id
        for each in parts
        for part in each
        for one in ast.walk(part)
        if isinstance(one, ast.Name)
    }
    return used <= mine & meant


def goes_over_others(one: ast.For, other: ast.For) -> bool:
    """Do two loops take others of the same: layers of a list, steps, numbers? One that gives the
    model its prompts goes over these where the other one may go over what came of them.
    """
    if gives_prompts(one) != gives_prompts(other):
        return False
    own, its = one.iter, other.iter
    mine, meant = (one.value if isinstance(one, ast.Subscript) else one for one in (own, its))
    parts = list(_differing(own, its))
    same = ast.dump(mine) == ast.dump(meant) or (own, its) not in parts
    return same and not any(_reads(one) for each in parts for one in each)


def gives_prompts(loop: ast.For) -> bool:
    """Is the model given a prompt in it?"""
    calls = (node.func for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(isinstance(one, ast.Attribute) and one.attr in _GIVES for one in calls)


def _lacking(mine: ast.stmt, every: tuple[Sequence[ast.stmt], Sequence[ast.stmt]]) -> _Pair | None:
    """The last statement that makes a variable, where `hf` makes it once more after that, of the
    variable itself and of no other value of the model.
    """
    ours, other = every
    if len(other) != len(ours) + 1 or mine is not ours[-1]:
        return None
    added = _computed(other[-1])
    names = statements.bound(mine)
    own = added is not None and {
        one.id for one in ast.walk(added) if isinstance(one, ast.Name)
    } & set(names)
    further = own and added is not None and not _reads(added)
    return _Pair(mine, other[-1], sure=True, added=True) if further else None


def _other_keys(mine: ast.stmt, meant: ast.stmt) -> bool:
    """Is a value put under another key? Where `hf` has no keys they are of the prompts, of which
    it holds a batch.
    """
    return bool(_keys(meant)) and _keys(mine) != _keys(meant)


def _keys(statement: ast.stmt) -> list[str]:
    """Under what a statement puts its value, where that is no axis of the model's: `grid[i, j]`."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return [
        ast.unparse(one)
        for one in targets
        if isinstance(one, ast.Subscript) and not _reads(one) and not _takes_axes(one.slice)
    ]


def _own(places: Places) -> list[ast.stmt]:
    """The statements of the function itself: what is in a helper both sides may use."""
    inside = set(ast.walk(places.function))
    return [one for one in places.scopes.statements if one in inside]


def _makes(statement: ast.stmt) -> tuple[str, ...] | None:
    """The variables that a statement gives a value, or an entry, a loop those that it runs with."""
    if isinstance(statement, ast.For):
        return ("for", ast.unparse(statement.target))
    if not isinstance(statement, _COMPARED):
        return None
    names = statements.bound(statement)
    kind = "changes" if isinstance(statement, ast.AugAssign) else "makes"
    return (kind, *names) if names else None


def _computed(statement: ast.stmt) -> ast.expr | None:
    return statement.iter if isinstance(statement, ast.For) else statements.value_of(statement)


def _there(node: ast.expr) -> str:
    """An expression of `hf` with every value that is known as it is on vLLM."""
    text = ast.unparse(node)
    for value in _values(text):
        text = text.replace(value.before, value.after or value.before, 1)
    return ast.unparse(ast.parse(text, mode="eval"))


def _reads_the_same(mine: ast.expr, meant: ast.expr) -> bool:
    """Is it the same text, but for the batch axis and a copy?"""
    own, other = ast.unparse(mine), _LAST_LOGITS.sub(r"\1.logits", ast.unparse(meant))
    by_a_name = re.sub(r"(?<=[\w\])])\[(?::|0), ", "[", other)
    if _bare(own) in map(_bare, (other, by_a_name, _there(meant))):
        return True
    asked = (ast.unparse(indices.one_by_one(one)) for one in (mine, meant))
    return len({*map(_bare, asked)}) == 1


def _bare(text: str) -> str:
    """Without what makes no other number: a prompt's logits are one row."""
    return re.sub(r"(?<=\.logits)\[[:0]\]|\.(?:clone|detach|save)\(\)", "", text)


def _reads_others(mine: ast.expr, meant: ast.expr) -> bool:
    """Does it take other values of modules than `hf`, of modules that give the same there, but for
    the batch axis?
    """
    own, other = (_values(ast.unparse(one)) for one in (mine, meant))
    known = all(one.kind == "plain" for one in (*own, *other))
    taken = [one.before for one in own] != [one.after for one in other]
    return bool(own) and bool(other) and known and taken


def _of_tokens(index: ast.expr) -> ast.expr:
    """An index of [1, tokens, width] as one of [tokens, width], others as they are."""
    parts = index.elts if isinstance(index, ast.Tuple) else []
    batch = ast.unparse(parts[0]) in {":", "0"} if len(parts) > 1 else False
    if not batch:
        return index
    return parts[1] if len(parts) == 2 else ast.Tuple(parts[1:], ast.Load())


def _differing(one: ast.AST, other: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """The smallest parts in which two expressions differ; an index is one part."""
    if ast.dump(one) == ast.dump(other):
        return
    if type(one) is not type(other):
        yield one, other
        return
    if isinstance(one, ast.Subscript) and isinstance(other, ast.Subscript):
        yield from _differing(one.value, other.value)
        there = _of_tokens(other.slice)
        if ast.dump(one.slice) not in {ast.dump(other.slice), ast.dump(there)}:
            yield one.slice, there
        return
    if isinstance(one, ast.Attribute) and isinstance(other, ast.Attribute):
        # A module by its path and by a name are read alike.
        named = one.attr in READ and type(one.value) is not type(other.value)
        if one.attr != other.attr or named:
            yield one, other
        else:
            yield from _differing(one.value, other.value)
        return
    children, theirs = (list(ast.iter_child_nodes(each)) for each in (one, other))
    if not children or len(children) != len(theirs):
        yield one, other
        return
    for each, its in zip(children, theirs, strict=True):
        yield from _differing(each, its)


class _Axes(ast.NodeTransformer):
    """An expression without what says which axes a value has: indices of numbers and slices, but
    for those of lists and mappings that the function itself makes, axes by name, and what gives the
    same numbers in another form.
    """

    def __init__(self, containers: Collection[str]) -> None:
        self.containers = containers

    def visit_Subscript(self, node: ast.Subscript) -> Any:
        key = isinstance(node.value, ast.Name) and node.value.id in self.containers
        if _takes_axes(node.slice) and not key:
            return _up_to(self.visit(node.value), node)
        self.generic_visit(node)
        return node

    def visit_Call(self, node: ast.Call) -> Any:
        if isinstance(node.func, ast.Attribute) and node.func.attr in _FORMS:
            return _up_to(self.visit(node.func.value), node)
        node.keywords = [one for one in node.keywords if one.arg not in _AXES]
        self.generic_visit(node)
        return node


def _up_to(inner: Any, whole: ast.expr) -> Any:
    """What is left of an expression stands in the text for the whole of it."""
    inner.end_lineno, inner.end_col_offset = whole.end_lineno, whole.end_col_offset
    return inner


#: What names an axis in a call.
_AXES = frozenset({"dim", "axis", "keepdim"})

#: Methods that give the same numbers in another form.
_FORMS = frozenset({"clone", "detach", "save", "squeeze", "unsqueeze", "contiguous"})


def _containers(places: Places) -> frozenset[str]:
    """The variables that hold lists and mappings which the function itself makes."""
    return frozenset(
        name
        for name, every in places.assigned.items()
        for one in every
        if (value := statements.value_of(one)) is not None
        and statements.binds(one, name)
        and isinstance(statements.kept(value), (ast.Dict, ast.List, ast.DictComp, ast.ListComp))
    )


def _without_axes(places: Places, node: ast.AST) -> ast.AST:
    stripped: ast.AST = _Axes(_containers(places)).visit(copy.deepcopy(node))
    return stripped


def _reads(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr in READ for one in ast.walk(node))


def _takes_axes(index: ast.expr) -> bool:
    """Is it an index of numbers and slices alone, as those of axes are, or of a prompt and these:
    `[i, -n:]`?
    """
    first, *others = index.elts if isinstance(index, ast.Tuple) and index.elts else [index]
    of_a_prompt = any(isinstance(one, ast.Slice) for one in others)
    return (of_a_prompt or _takes_axis(first)) and all(map(_takes_axis, others))


def _takes_axis(part: ast.expr) -> bool:
    return (
        isinstance(part, ast.Slice)
        or (
            isinstance(part, ast.Constant)
            and (part.value in (None, ...) or type(part.value) is int)
        )
        or (isinstance(part, ast.UnaryOp) and isinstance(part.operand, ast.Constant))
    )


def _told(places: Places, theirs: Places, pair: _Pair) -> UnlikeLine:
    line, number = theirs.file.line(pair.meant.lineno).strip(), pair.meant.lineno
    words = f"`hf` has in the place of line {pair.mine.lineno} `{line}`, line {number}"
    if pair.added:
        words = f"`hf` goes on with `{line}`, line {number}, and `vllm` does not"
    after = _mended(places, theirs, pair) if pair.sure else ""
    edit = Edit(pair.mine.lineno, places.file.line(pair.mine.lineno), after)
    return UnlikeLine(words, edit, pair.sure)


def _mended(places: Places, theirs: Places, pair: _Pair) -> str:
    """The line as `hf` has it, "" where that may be another thing here."""
    if pair.added:
        alone = not _names_axes(theirs, pair.meant) and known_here(places, pair.meant)
        before = places.file.line(pair.mine.lineno)
        indent = before[: len(before) - len(before.lstrip())]
        single = pair.mine.end_lineno == pair.mine.lineno
        return f"{before}\n{indent}{ast.unparse(pair.meant)}" if alone and single else ""
    if _other_keys(pair.mine, pair.meant):
        return _with_targets(places, pair)
    own, its = _computed(pair.mine), _computed(pair.meant)
    if own is None or its is None:
        return ""
    if isinstance(pair.mine, ast.For):
        return _with_parts(places, theirs, [(own, its)], axes=True)
    if not _reads_others(own, its):
        parts = _differing(_without_axes(places, own), _without_axes(theirs, its))
        return _with_parts(places, theirs, [one for one in parts if not any(map(_reads, one))])
    text = ast.unparse(its)
    for one in _values(text):
        text = text.replace(one.before, "value", 1)
    free = not _names_axes(theirs, ast.parse(text)) and known_here(places, its)
    return replaced(places, own, _there(its)) if free else ""


def _with_parts(
    places: Places,
    theirs: Places,
    parts: Sequence[tuple[ast.AST, ast.AST]],
    *,
    axes: bool = False,
) -> str:
    """The line with these parts as `hf` has them, "" where one is known on `hf`'s side alone, or
    names the axes of what may have others here.
    """
    exchanged = []
    for mine, meant in parts:
        text = theirs.file.segment(meant)
        if not isinstance(mine, ast.expr) or not isinstance(meant, ast.expr) or not text:
            return ""
        if isinstance(meant, (ast.Slice, ast.Tuple)):
            return ""  # no expression by itself
        whole = ast.parse(f"({text})", mode="eval")
        if not known_here(places, whole) or (_names_axes(theirs, whole) and not axes):
            return ""
        copied = places.file.segment(mine).endswith(".clone()") and not text.endswith(".clone()")
        exchanged.append((mine, f"{text}.clone()" if copied else text))
    if len({one.lineno for one, _ in exchanged}) != 1:
        return ""
    exchanged.sort(key=lambda one: -one[0].col_offset)
    line = places.file.line(exchanged[0][0].lineno)
    for mine, text in exchanged:
        line = statements.with_node(line, mine, text) if line else ""
    return line


def _with_targets(places: Places, pair: _Pair) -> str:
    """The line with what `hf` gives its value to."""
    mine, meant = pair.mine, pair.meant
    if not isinstance(mine, ast.Assign) or not isinstance(meant, ast.Assign):
        return ""
    if len(mine.targets) != 1 or len(meant.targets) != 1 or not known_here(places, meant):
        return ""
    return replaced(places, mine.targets[0], ast.unparse(meant.targets[0]))


def _names_axes(places: Places, node: ast.AST) -> bool:
    """Does an expression take something of a tensor by the number of an axis, or along one?"""
    own = _containers(places)
    for one in ast.walk(node):
        if isinstance(one, ast.keyword) and one.arg in _AXES:
            return True
        if isinstance(one, ast.Attribute) and one.attr in {"squeeze", "unsqueeze", "transpose"}:
            return True
        if isinstance(one, ast.Subscript) and getattr(one.value, "id", "") not in own:
            parts = one.slice.elts if isinstance(one.slice, ast.Tuple) else [one.slice]
            if len(parts) > 1 or _takes_axes(one.slice):
                return True
    return False


def _values(text: str) -> Sequence[module_values.Value]:
    return module_values.values(text, same=True)
