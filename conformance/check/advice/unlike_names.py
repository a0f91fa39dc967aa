"""The names that a statement is made with, where `hf` makes one of them otherwise. Found in the
text: the statement stands as it should, and what goes into it, or where it goes, is another value.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from conformance.check.advice.edits import Edit, replaced
from conformance.check.advice.finding import Finding
from conformance.check.advice.reads.computed_values import known_here
from conformance.check.advice.reads.unlike_lines import gives_prompts, goes_over_others
from conformance.check.parsing import indices, module_values, statements
from conformance.check.parsing.dataflow import READ, Places
from conformance.check.parsing.scopes import FORM
from conformance.shortening import few

#: How many statements are compared on the way back.
_MOST = 64

#: So many names are told for one statement of `hf`.
_NAMED = 4

#: What makes a plain number of anything.
_NUMBERS = frozenset({"int", "float", "bool", "len", "item"})


@dataclass(frozen=True)
class _Unlike:
    """What gives a name its value here, and in `hf`."""

    name: str
    mine: ast.stmt
    meant: ast.stmt


def reads_the_same(mine: ast.stmt, meant: ast.stmt) -> bool:
    """Does a statement read as one of `hf`, but for the batch axis?"""
    text = statements.head(meant)
    by_a_name = re.sub(r"(?<=\w)\[(?::|0), ", "[", text)
    if statements.head(mine) in {text, module_values.there(text), by_a_name}:
        return True
    return statements.head(_one_by_one(mine)) == statements.head(_one_by_one(meant))


def _one_by_one(statement: ast.stmt) -> ast.stmt:
    """A statement, of a loop what it goes over, with its indices one by one."""
    if isinstance(statement, ast.For):
        return ast.For(statement.target, indices.one_by_one(statement.iter), [], [])
    return indices.one_by_one(statement)


def unlike_names(
    places: Places, theirs: Places, mine: ast.stmt, meant: ast.stmt, begin: str
) -> list[Finding]:
    """The names that a statement is made with, and its counterpart in `hf` otherwise; `begin` says
    what the statement does.
    """
    every = list(_unlike(places, theirs, mine, meant))
    found = []
    for its in dict.fromkeys(one.meant for one in every):
        group = [one for one in every if one.meant is its]
        group.sort(key=lambda one: one.mine.lineno)
        first = group[0].mine
        names = few((f"`{one.name}` of line {one.mine.lineno}" for one in group), _NAMED)
        line = theirs.file.line(its.lineno).strip()
        words = f"{begin} with {names}: `hf` has in its place `{line}`, line {its.lineno}"
        after = _mended(places, first, its) if len(every) == 1 else ""
        edit = Edit(first.lineno, places.file.line(first.lineno), after)
        found.append(Finding("other-value", words, edit=edit))
    return found


def _unlike(places: Places, theirs: Places, begin: ast.stmt, its: ast.stmt) -> Iterator[_Unlike]:
    """The names that both statements have and that are made otherwise, from there back; behind such
    a name nothing is compared, and nothing where it is not known what `hf` has is here.
    """
    waiting = [(begin, its)]
    seen = [begin]
    while waiting and len(seen) < _MOST:
        near, other = waiting.pop(0)
        meant_names = _names(other)
        for name in (one for one in _names(near) if one in meant_names):
            mine, meant = _makers(places, name, near), _makers(theirs, name, other)
            if len(mine) != len(meant):
                continue
            for one, each in zip(mine, meant, strict=True):
                if one in seen:
                    continue
                seen.append(one)
                if reads_the_same(one, each):
                    waiting.append((one, each))
                elif _differ((places, one), (theirs, each)):
                    yield _Unlike(name, one, each)


_Side = tuple[Places, ast.stmt]


def _differ(mine: _Side, meant: _Side) -> bool:
    """Is it known that two statements that read otherwise are other ones, or of two loops that they
    take others of the same? A loop over prompts is none over what came of them.
    """
    loops = [one for _, one in (mine, meant) if isinstance(one, ast.For)]
    if loops and len({gives_prompts(one) for one in loops}) > 1:
        return False
    if len(loops) > 1 and goes_over_others(*loops):
        return True
    if not all(_reads_known(statement) for _, statement in (mine, meant)):
        return False
    return (_comparable(*mine) and _comparable(*meant)) or _in_numbers(mine, meant)


def _reads_known(statement: ast.stmt) -> bool:
    """Is all that a statement reads of the model the value of a module that is one there, too?
    `model.logits` stands for what the head gives.
    """
    known = module_values.values(statements.head(statement), same=True)
    return not _reads(statement) or bool(known)


def _in_numbers(mine: _Side, meant: _Side) -> bool:
    """Do two statements differ in plain numbers alone, which are no index and no axis?"""
    pairs = _differing(*(indices.one_by_one(statement) for _, statement in (mine, meant)))
    if not pairs:
        return False
    sides = zip(*pairs, strict=True)
    return all(
        _is_plain(places, statement, one)
        for (places, statement), nodes in zip((mine, meant), sides, strict=True)
        for one in nodes
    )


def _differing(one: ast.AST, other: ast.AST) -> list[tuple[ast.AST, ast.AST]]:
    """The smallest parts in which two trees differ, whole indices and axes."""
    if ast.dump(one) == ast.dump(other):
        return []
    children, theirs = (list(ast.iter_child_nodes(each)) for each in (one, other))
    whole = isinstance(one, (ast.Subscript, ast.keyword, ast.Name, ast.Constant, ast.Attribute))
    if whole or type(one) is not type(other) or len(children) != len(theirs):
        return [(one, other)]
    if isinstance(one, (ast.BinOp, ast.UnaryOp, ast.Compare)):
        return [(one, other)]
    found = [pair for each in zip(children, theirs, strict=True) for pair in _differing(*each)]
    return found or [(one, other)]


def _is_plain(places: Places, near: ast.stmt, node: ast.AST) -> bool:
    """Is it arithmetic with numbers that no value of the model is in?"""
    made_of = (ast.Name, ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Load)
    if not all(isinstance(one, made_of) for one in ast.walk(node)):
        return False
    waiting, seen = [(near, _named_in(node))], [near]
    while waiting:
        statement, names = waiting.pop()
        for name in names:
            for made in _makers(places, name, statement):
                if _reads(made):
                    return False
                if made not in seen:
                    seen.append(made)
                    waiting.append((made, _names(made)))
    return True


def _named_in(node: ast.AST) -> list[str]:
    return [one.id for one in ast.walk(node) if isinstance(one, ast.Name)]


def _comparable(places: Places, statement: ast.stmt) -> bool:
    """Is it known how a statement of `hf` reads on vLLM? What it takes of the model itself is; of
    what was taken further up it is not known which axes are left.
    """
    if module_values.there(statements.head(statement)) is None:
        return False
    waiting, seen = [statement], [statement]
    while waiting:
        near = waiting.pop()
        if near is not statement and _reads(near):
            return False
        for name in _names(near, numbers=False):
            helper = places.scopes.helpers.get(name)
            if helper is not None and _reads(helper):
                return False
            made = [one for one in _makers(places, name, near) if one not in seen]
            seen += made
            waiting += made
    return True


def _reads(node: ast.AST) -> bool:
    """Is a module's value read in it, in a loop's head alone where it is one?"""
    node = node.iter if isinstance(node, ast.For) else node
    return any(isinstance(one, ast.Attribute) and one.attr in READ for one in ast.walk(node))


def _names(statement: ast.stmt, *, numbers: bool = True) -> list[str]:
    """The variables that a statement uses; without those of which it makes plain numbers alone,
    which have no axes, where `numbers` is not said.
    """
    parts: Sequence[ast.AST | None] = (
        [statement.iter]
        if isinstance(statement, ast.For)
        else [*statements.places_of(statement), statements.value_of(statement)]
    )
    walk = ast.walk if numbers else _with_axes
    every = (node for part in parts if part is not None for node in walk(part))
    return list(dict.fromkeys(one.id for one in every if isinstance(one, ast.Name)))


def _with_axes(node: ast.AST) -> Iterator[ast.AST]:
    """What is in a node and may be of a tensor's axes: not what is made a plain number, and not
    what a tensor is asked of its form.
    """
    method = node.func if isinstance(node, ast.Call) else None
    called = method.id if isinstance(method, ast.Name) else getattr(method, "attr", "")
    if called in _NUMBERS:
        return
    if isinstance(node, ast.Attribute) and node.attr in FORM:
        return
    yield node
    for child in ast.iter_child_nodes(node):
        yield from _with_axes(child)


def _makers(places: Places, name: str, near: ast.stmt) -> list[ast.stmt]:
    """What gives a variable its value above a statement: the last loop over it, or the statements
    since.
    """
    made = [one for one in places.scopes.makers(name, near) if one.lineno < near.lineno]
    loops = [
        one
        for one in places.scopes.statements
        if isinstance(one, ast.For)
        and one.lineno < near.lineno
        and any(isinstance(node, ast.Name) and node.id == name for node in ast.walk(one.target))
    ]
    binding = [one.lineno for one in made if statements.binds(one, name)]
    if loops and loops[-1].lineno > max(binding, default=0):
        return [loops[-1]]
    return made


def _mended(places: Places, mine: ast.stmt, meant: ast.stmt) -> str:
    """The line with what `hf` computes in its place, "" where that is not known here."""
    ours, own = statements.value_of(mine), statements.value_of(meant)
    text = statements.head(meant)
    there = module_values.there(text)
    if ours is None or own is None or there is None or not known_here(places, own):
        return ""
    targets = [
        [ast.unparse(one) for one in each.targets] if isinstance(each, ast.Assign) else None
        for each in (mine, meant)
    ]
    made = statements.value_of(ast.parse(there).body[0])
    if targets[0] is None or targets[0] != targets[1] or made is None:
        return ""
    if ast.unparse(indices.one_by_one(ours)) == ast.unparse(ours) != ast.unparse(own):
        asked = indices.one_by_one(made)
        if ast.unparse(asked) != ast.unparse(made):
            return replaced(places, ours, ast.unparse(asked))
    return replaced(places, ours, places.file.segment(own) if there == text else ast.unparse(made))
