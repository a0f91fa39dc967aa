"""A value that a function computes itself, of others that it returns and that are right: then the
computation is another one, or a name in it, and not what the model gave. The two functions' texts
say where: the first place on the way back from what is returned at which they differ.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from conformance.check.advice.edits import Edit, replaced
from conformance.check.parsing import statements
from conformance.check.parsing.containers import empty
from conformance.check.parsing.dataflow import READ, Places
from conformance.check.parsing.returned_expressions import every_returned, returned

#: How many variables are followed.
_HOPS = 6


@dataclass(frozen=True)
class Computed:
    """Where the two functions compute a value otherwise: the line of `vllm`, mended where that is
    sure, and what is to be said of it.
    """

    words: str
    edit: Edit


@dataclass(frozen=True)
class _Side:
    """One function, and the names that it returns its right variables under."""

    places: Places
    right: Mapping[str, str]

    def is_right(self, name: str, near: ast.stmt) -> bool:
        """Has a variable in this statement the value that is returned, and right?"""
        under = self.right.get(name)
        value = returned(self.places.scopes, under) if under is not None else None
        if value is None:
            return False
        scopes = self.places.scopes
        return scopes.makers(name, near) == scopes.makers(name, scopes.statement_of(value))

    def text(self, value: ast.expr) -> str:
        """An expression with the returned names in the place of the right variables' own."""
        tree = ast.parse(ast.unparse(value), mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Name) and node.id in self.right:
                node.id = f"<{self.right[node.id]}>"
        return ast.dump(tree)


@dataclass(frozen=True)
class _Place:
    """An expression and the statement that it stands in."""

    value: ast.expr
    statement: ast.stmt


def computed(places: Places, name: str, right: Collection[str]) -> Computed | None:
    """Where `vllm` computes what it returns under a name otherwise than `hf`, where all that it is
    computed from of the model is `right`: names under which the same is returned on both sides.
    """
    if not places.file.ported:
        return None
    theirs = Places(places.file, places.file.function_for("hf"), dual=False)
    ours, other = (returned(each.scopes, name) for each in (places, theirs))
    if ours is None or other is None:
        return None
    mine, meant = (
        _Side(each, _variables(each, right, own)) for each, own in ((places, ours), (theirs, other))
    )
    begin = _Place(ours, places.scopes.statement_of(ours))
    used, others = _of_right(mine, begin)
    if not used:
        return None
    pair = _unlike(mine, meant, begin, _Place(other, theirs.scopes.statement_of(other)), _HOPS)
    if pair is not None:
        return _told(places, theirs, pair, used)
    return _left(places, used, others) if others else None


def made_otherwise(places: Places, name: str) -> Computed | None:
    """The statement that `vllm` makes a returned variable with, beside the one of `hf`."""
    theirs = Places(places.file, "hf", dual=False) if places.file.ported else None
    own = made_by(places, name)
    if own is None:
        return None
    before = places.file.line(own.lineno)
    other = made_by(theirs, name) if theirs is not None else None
    shown = theirs.file.line(other.lineno).strip() if theirs is not None and other else ""
    beside = (
        f": `hf` has `{shown}`, line {other.lineno}" if other and shown != before.strip() else ""
    )
    return Computed(f"line {own.lineno} makes it{beside}", Edit(own.lineno, before))


def made_by(places: Places, name: str) -> ast.stmt | None:
    """The last statement that makes the variable which is returned under a name."""
    value = returned(places.scopes, name)
    if not isinstance(value, ast.Name):
        return None
    made = places.scopes.makers(value.id, places.scopes.statement_of(value))
    return made[-1] if made else None


def _variables(places: Places, right: Collection[str], own: ast.expr) -> dict[str, str]:
    """The variables that are returned under these names, each with the name. What is returned as
    `own` is, too, is not told from it: the keys are computed, or are not in the text.
    """
    values = {name: returned(places.scopes, name) for name in sorted(right)}
    return {
        value.id: name
        for name, value in values.items()
        if isinstance(value, ast.Name) and value is not own
    }


def _of_right(side: _Side, begin: _Place) -> tuple[list[str], dict[str, ast.stmt]]:
    """The right variables that an expression is computed from, and those that are made of none of
    them and not returned, each with what makes it; none where it is computed from anything else of
    the model, too.
    """
    scopes, used = side.places.scopes, []
    handed = map(statements.kept, every_returned(scopes))
    given = {one.id for one in handed if isinstance(one, ast.Name)}
    others: dict[str, ast.stmt] = {}
    waiting, seen = [begin], [begin.statement]
    while waiting:
        place = waiting.pop(0)
        if _reads(place.value):
            return [], {}
        for name in scopes.names(place.value):
            if side.is_right(name, place.statement):
                used.append(name)
                continue
            helper = scopes.helpers.get(name)
            if helper is not None and _reads(helper):
                return [], {}
            made = scopes.makers(name, place.statement)
            values = [statements.value_of(one) for one in made]
            near = [_Place(v, one) for v, one in zip(values, made, strict=True) if v is not None]
            if len(near) != len(made):
                return [], {}
            right = [
                one
                for each in near
                for one in scopes.names(each.value)
                if side.is_right(one, each.statement)
            ]
            if near and not right and name not in given:
                others.setdefault(name, _first(near))
            fresh = [one for one in near if one.statement not in seen]
            seen += [one.statement for one in fresh]
            waiting += fresh
    return list(dict.fromkeys(used)), others


def _first(made: Sequence[_Place]) -> ast.stmt:
    """The first statement that gives something to a variable; a list is often made empty."""
    return next((one for one in made if not empty(one.value)), made[0]).statement


def _reads(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Attribute) and one.attr in READ for one in ast.walk(node))


def _unlike(
    mine: _Side, meant: _Side, one: _Place, other: _Place, hops: int
) -> tuple[_Place, _Place] | None:
    """The first place on the way back at which the two sides compute something else."""
    if mine.text(one.value) != meant.text(other.value):
        return one, other
    if not hops:
        return None
    for name in mine.places.scopes.names(one.value):
        if mine.is_right(name, one.statement):
            continue
        ours, theirs = (
            [
                _Place(value, made)
                for made in side.places.scopes.makers(name, near.statement)
                if (value := statements.value_of(made)) is not None
            ]
            for side, near in ((mine, one), (meant, other))
        )
        if len(ours) != len(theirs):
            continue
        for each, its in zip(ours, theirs, strict=True):
            if each.statement is one.statement:
                continue
            found = _unlike(mine, meant, each, its, hops - 1)
            if found is not None:
                return found
    return None


def _told(
    places: Places, theirs: Places, pair: tuple[_Place, _Place], used: Collection[str]
) -> Computed:
    one, other = pair
    line, there = one.value.lineno, other.value.lineno
    own, text = places.file.segment(one.value), theirs.file.segment(other.value)
    if isinstance(one.value, ast.Name) and isinstance(one.statement, ast.Return):
        words = f"line {line} returns `{own}`, and line {there} of `hf` `{text}`"
    else:
        words = (
            f"{_are_right(used)}: line {line} computes something else. "
            f"`hf` has `{text}`, line {there}"
        )
    the_same = not _reads(other.value) and not _of_the_model(theirs, other.value)
    known = the_same and known_here(places, other.value)
    known = known and _same_targets(one.statement, other.statement)
    short = "\n" not in text and one.value.end_lineno == line
    after = replaced(places, one.value, text) if known and short else ""
    return Computed(words, Edit(line, places.file.line(line), after))


def _left(places: Places, used: Collection[str], others: Mapping[str, ast.stmt]) -> Computed:
    """Of two equal texts: what they name beside the right values."""
    first = next(iter(others.values()))
    beside = [name for name, statement in others.items() if statement is first]
    named = " and ".join(f"`{name}`" for name in beside)
    verb = "is" if len(beside) == 1 else "are"
    words = f"{_are_right(used)}: look at {named}, line {first.lineno}, which {verb} not returned"
    return Computed(words, Edit(first.lineno, places.file.line(first.lineno)))


def _are_right(used: Collection[str]) -> str:
    verb = "is" if len(used) == 1 else "are"
    return f"{' and '.join(f'`{name}`' for name in used)}, which it is computed from, {verb} right"


def known_here(places: Places, node: ast.AST) -> bool:
    """Does every name in an expression of `hf` stand for something in `vllm`, too?"""
    tree = ast.parse(places.file.text)
    top = {each for one in tree.body for each in _bound_at_the_top(one)}
    own = {argument.arg for argument in places.function.args.args} | places.assigned.keys()
    targets = [
        one.target if isinstance(one, ast.For) else one.optional_vars
        for one in ast.walk(places.function)
        if isinstance(one, (ast.For, ast.withitem))
    ]
    own |= {
        name.id
        for target in targets
        if target is not None
        for name in ast.walk(target)
        if isinstance(name, ast.Name)
    }
    inside = {
        one.id
        for each in ast.walk(node)
        if isinstance(each, ast.comprehension)
        for one in ast.walk(each.target)
        if isinstance(one, ast.Name)
    }
    names = {one.id for one in ast.walk(node) if isinstance(one, ast.Name)}
    return names <= own | top | inside | set(dir(builtins))


def _bound_at_the_top(node: ast.stmt) -> list[str]:
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return [one.asname or one.name.partition(".")[0] for one in node.names]
    return statements.bound(node)


def _of_the_model(places: Places, value: ast.expr) -> bool:
    """Does an expression name a part of the model, which may be another thing there?"""
    model = places.function.args.args[0].arg
    return any(
        isinstance(one, ast.Attribute)
        and isinstance(one.value, ast.Name)
        and one.value.id == model
        and one.attr != "tokenizer"
        for one in ast.walk(value)
    )


def _same_targets(one: ast.stmt, other: ast.stmt) -> bool:
    """Do two statements give what they compute to the same names, or return it?"""
    ours, theirs = (
        [ast.unparse(target) for target in getattr(each, "targets", [])] for each in (one, other)
    )
    return ours == theirs
