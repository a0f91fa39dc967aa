"""A value that goes from one invoke of a trace to another, which none does on vLLM: each is a
request of its own there. And the same as a trace for each, where the text can be taken apart.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass

from conformance.check.advice.edits import Edit
from conformance.check.advice.finding import Finding
from conformance.check.parsing import statements
from conformance.check.parsing.containers import empty, fills
from conformance.check.parsing.dataflow import Places


@dataclass(frozen=True)
class Crossing:
    """`name` gets its value in line `made` of an invoke, and is used in line `used` of another;
    both are in the block `trace`.
    """

    name: str
    made: int
    used: int
    trace: ast.With


def finding(places: Places, line: int | None) -> Finding | None:
    """That this line, or any where it is not known, uses what another invoke makes."""
    every = list(_crossings(places.function))
    there = next((one for one in every if line in {None, one.used}), None)
    if there is None:
        return None
    first, last = there.trace.lineno, there.trace.end_lineno
    words = (
        f"`{there.name}` gets its values in one invoke (line {there.made}) and is used in another "
        f"(line {there.used}). On vLLM an invoke is a request of its own, and nothing goes from "
        "one to another: it is empty there. Run a trace for each, one after the other, of which "
        "the first saves what the others use"
    )
    after = _apart(places, there.trace)
    if not after:
        return Finding(
            "crossing", words, there.name, edit=Edit(there.used, places.file.line(there.used))
        )
    words += f": this in place of lines {first} to {last}"
    edit = Edit(first, places.file.line(first), after)
    return Finding("crossing", words, there.name, edit=edit)


def _crossings(function: ast.FunctionDef) -> Iterator[Crossing]:
    for trace in ast.walk(function):
        if not isinstance(trace, ast.With) or not _is(trace, "trace", "generate"):
            continue
        invokes = [
            one for one in ast.walk(trace) if isinstance(one, ast.With) and _is(one, "invoke")
        ]
        filled = {id(one): dict(_filled(one)) for one in invokes}
        for one in invokes:
            for name, line in sorted(_used(one).items(), key=lambda each: each[1]):
                other = [filled[id(o)][name] for o in invokes if name in filled[id(o)]]
                if other and name not in filled[id(one)]:
                    yield Crossing(name, other[0], line, trace)


def _is(block: ast.With, *methods: str) -> bool:
    """Does a block open one of these?"""
    calls = [one.context_expr for one in block.items]
    return any(
        isinstance(one, ast.Call)
        and isinstance(one.func, ast.Attribute)
        and one.func.attr in methods
        for one in calls
    )


def _filled(block: ast.With) -> Iterator[tuple[str, int]]:
    """The variables that a block gives a value to, with the last line of each that does."""
    for node in ast.walk(block):
        if isinstance(node, ast.stmt) and not hasattr(node, "body"):
            for name in statements.bound(node):
                yield name, node.lineno


def _used(block: ast.With) -> dict[str, int]:
    """The variables that a block uses, with the first line of each; not those that it fills."""
    targets = {id(statements.filled_by(node)) for node in ast.walk(block)}
    found: dict[str, int] = {}
    for node in ast.walk(block):
        read = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if isinstance(node, ast.Name) and read and id(node) not in targets:
            found[node.id] = min(node.lineno, found.get(node.id, node.lineno))
    return found


def _apart(places: Places, trace: ast.With) -> str:
    """The block as a trace for each of its invokes, "" where it cannot be taken apart."""
    item = trace.items[0]
    call = item.context_expr
    if len(trace.items) != 1 or not isinstance(call, ast.Call) or call.args:
        return ""
    opened = ast.unparse(call.func), [ast.unparse(one) for one in call.keywords]
    splitting = _Splitting(places, trace, opened)
    try:
        lines = splitting.of(trace.body)
    except _TooMuch:
        return ""
    indent = " " * trace.col_offset
    return textwrap.indent("\n".join(lines), indent)


class _TooMuch(Exception):
    """The text cannot be taken apart."""


class _Splitting:
    """The statements of one trace, while they become several. `opened` is what opens it."""

    def __init__(self, places: Places, trace: ast.With, opened: tuple[str, list[str]]) -> None:
        self.places = places
        self.trace = trace
        self.opened = opened
        self.first: dict[int, list[str]] = {}
        self.outside: set[str] = set()

    def of(self, body: list[ast.stmt]) -> list[str]:
        """These statements, with a trace for each invoke."""
        found: list[str] = []
        for one in body:
            made = _made(one)
            if made:
                found += [line for name, value in made for line in self._container(name, value)]
            elif isinstance(one, ast.With) and _is(one, "invoke"):
                found += self._invoke(one)
            elif isinstance(one, ast.For) and not one.orelse and _invokes(one):
                head = f"for {ast.unparse(one.target)} in {ast.unparse(one.iter)}:"
                found += [head, *_indented(self.of(one.body))]
            elif _invokes(one) or self._traced(one):
                raise _TooMuch
            else:
                found += self._text(one)
        return found

    def _container(self, name: str, value: str) -> list[str]:
        """A dict or a list: made in the one block that fills it, or else outside of all."""
        blocks = [one for one in _invokes(self.trace) if fills(one, name)]
        if len(blocks) == 1 and blocks[0] in self.trace.body:
            self.first.setdefault(id(blocks[0]), []).append(f"{name} = {value}.save()")
            return []
        self.outside.add(name)
        return [f"{name} = {value}"]

    def _invoke(self, block: ast.With) -> list[str]:
        call = block.items[0].context_expr
        if len(block.items) != 1 or not isinstance(call, ast.Call):
            raise _TooMuch
        name, keywords = self.opened
        given = [*map(ast.unparse, (*call.args, *call.keywords)), *keywords]
        inside, behind = list(self.first.get(id(block), [])), []
        for one in block.body:
            filled = [each for each in statements.bound(one) if each in self.outside]
            if filled:
                kept, put = _kept(one, filled[0])
                inside.append(kept)
                behind.append(put)
            elif self._traced(one) or any(fills(one, each) for each in self.outside):
                raise _TooMuch
            else:
                inside += self._text(one)
        return [f"with {name}({', '.join(given)}):", *_indented(inside), *behind]

    def _traced(self, statement: ast.stmt) -> bool:
        """Does it use what only the trace has, as a barrier?"""
        bound = self.trace.items[0].optional_vars
        names = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name)}
        return isinstance(bound, ast.Name) and bound.id in names

    def _text(self, statement: ast.stmt) -> list[str]:
        """A statement as it stands in the file, without its indentation."""
        lines = range(statement.lineno, (statement.end_lineno or statement.lineno) + 1)
        text = "\n".join(self.places.file.line(number) for number in lines)
        return textwrap.dedent(text).splitlines()


def _kept(statement: ast.stmt, name: str) -> tuple[str, str]:
    """A statement that fills a dict or a list, in two: one saves the value in the block, the other
    puts it there behind it.
    """
    value = statements.value_of(statement)
    if value is None:
        raise _TooMuch
    text = ast.unparse(value)
    text = text if text.endswith(".save()") else f"({text}).save()"
    saved = f"{name}_value"
    if isinstance(statement, ast.Assign) and len(statement.targets) == 1:
        target = statement.targets[0]
        if isinstance(target, ast.Subscript) and isinstance(target.value, ast.Name):
            return f"{saved} = {text}", f"{ast.unparse(target)} = {saved}"
    elif isinstance(statement, ast.Expr) and ".append(" in ast.unparse(statement):
        return f"{saved} = {text}", f"{name}.append({saved})"
    raise _TooMuch


def _indented(lines: list[str]) -> list[str]:
    return [f"    {line}" if line else line for line in lines]


def _invokes(within: ast.stmt) -> list[ast.With]:
    return [one for one in ast.walk(within) if isinstance(one, ast.With) and _is(one, "invoke")]


def _made(statement: ast.stmt) -> list[tuple[str, str]]:
    """The dicts and lists that a statement makes empty, saved or not: their names and what they
    are made as.
    """
    if not isinstance(statement, ast.Assign):
        return []
    target, value = statement.targets[0], statement.value
    pairs = [(target, value)]
    if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
        pairs = list(zip(target.elts, value.elts, strict=False))
    found = []
    for name, each in pairs:
        bare = each
        if isinstance(each, ast.Call) and isinstance(each.func, ast.Attribute):
            bare = each.func.value if each.func.attr == "save" else each
        if not isinstance(name, ast.Name) or not empty(bare):
            return []
        found.append((name.id, ast.unparse(bare)))
    return found
