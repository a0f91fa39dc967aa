"""A user's file as a syntax tree, with the position of each node in the text."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from typing import Any

import libcst as cst
from libcst import matchers as m
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, ParentNodeProvider

#: Compound statements: an edit of one replaces its header and keeps its body.
COMPOUND = (cst.With, cst.For, cst.While, cst.If, cst.Try)

#: nnsight's attributes for the values of a module.
VALUES = frozenset({"output", "input", "inputs"})


@dataclass(frozen=True, order=True)
class Splice:
    """A replacement of bytes `start` to `end` of a text by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, eq=False)
class Statement:
    """A simple statement, or the header of a compound one, with its byte range in the file."""

    node: cst.CSTNode
    start: int
    end: int
    text: str
    indent: str


@dataclass(frozen=True, eq=False)
class Access:
    """A module's value with the indexes that follow it, such as `layer.output[0][:, -1]`.

    `core` is the text up to `.output`, `.input` or `.inputs`, or a name for it. `stored`: assigned.
    """

    node: cst.BaseExpression
    core: str
    indexes: tuple[str, ...]
    stored: bool


class ParsedFile:
    """The parsed text of a file. Raises `cst.ParserSyntaxError` if it is not Python."""

    def __init__(self, text: str, side: str) -> None:
        self.text = text
        self.side = side
        self._bytes = text.encode()
        wrapper = MetadataWrapper(cst.parse_module(self._bytes), unsafe_skip_copy=False)
        self.module = wrapper.module
        self._spans = wrapper.resolve(ByteSpanPositionProvider)
        self.parents = wrapper.resolve(ParentNodeProvider)
        self._newlines = [at for at, byte in enumerate(self._bytes) if byte == 10]

    @cached_property
    def functions(self) -> dict[str, cst.FunctionDef]:
        """The functions at the top of the file, by name."""
        body = self.module.body
        return {one.name.value: one for one in body if isinstance(one, cst.FunctionDef)}

    def span(self, node: cst.CSTNode) -> tuple[int, int]:
        """Return the first byte of a node and the one after its last."""
        found = self._spans[node]
        return found.start, found.start + found.length

    def code(self, node: cst.CSTNode) -> str:
        """Return the text of a node."""
        start, end = self.span(node)
        return self._bytes[start:end].decode()

    def line(self, at: int) -> int:
        """Return the line of a byte, counted from 1."""
        return bisect_left(self._newlines, at) + 1

    def replaced(self, splices: Iterable[Splice]) -> str:
        """Return the text with these splices applied, which must not overlap."""
        return self.part(0, len(self._bytes), splices)

    def part(self, start: int, end: int, splices: Iterable[Splice]) -> str:
        """Return bytes `start` to `end` of the text with these splices in them applied."""
        found = self._bytes[start:end]
        for one in sorted(splices, reverse=True):
            found = found[: one.start - start] + one.text.encode() + found[one.end - start :]
        return found.decode()

    def swap(self, node: cst.CSTNode, text: str) -> Splice:
        """Return the splice that replaces a node's text."""
        return Splice(*self.span(node), text)

    # ── what may be edited ─────────────────────────────────────────────────────────────────────

    @cached_property
    def methods(self) -> list[cst.FunctionDef]:
        """The methods of the classes at the top of the file."""
        classes = (one for one in self.module.body if isinstance(one, cst.ClassDef))
        parts = (part for one in classes for part in one.body.body)
        return [part for part in parts if isinstance(part, cst.FunctionDef)]

    @cached_property
    def edited(self) -> list[cst.FunctionDef]:
        """The functions that may be edited: the side's first, then all others except `hf`."""
        others = [f for name, f in self.functions.items() if name not in {self.side, "hf"}]
        return [self.functions[self.side], *others, *self.methods]

    def walk(self, root: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield a node and all its descendants."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def expressions(self, kind: Any) -> Iterator[Any]:
        """Yield the nodes of a kind in the functions that may be edited."""
        for function in self.edited:
            yield from (node for node in self.walk(function.body) if isinstance(node, kind))

    def matches(self, *patterns: str) -> Iterator[tuple[cst.CSTNode, Mapping[str, Any]]]:
        """Yield the matches of patterns in the functions that may be edited, with their holes."""
        for pattern in map(parse_pattern, patterns):
            for node in self.expressions(type(pattern)):
                if (holes := match(pattern, node)) is not None:
                    yield node, holes

    @cached_property
    def statements(self) -> list[Statement]:
        """The statements of the functions that may be edited, in order within each function."""
        return [one for function in self.edited for one in self.statements_of(function)]

    def fitting(self, pattern: str) -> Iterator[tuple[Statement, re.Match[str]]]:
        """Yield the statements that a regular expression fits as a whole."""
        for one in self.statements:
            if found := re.fullmatch(pattern, one.text, flags=re.DOTALL):
                yield one, found

    def statements_of(self, function: cst.FunctionDef) -> Iterator[Statement]:
        """Yield the statements of a function, in the order of the text."""
        for node in self.walk(function.body):
            if isinstance(node, cst.SimpleStatementLine):
                start, end = self.span(node.body[0])[0], self.span(node.body[-1])[1]
            elif isinstance(node, (*COMPOUND, cst.FunctionDef)):
                start, first = self.span(node)[0], self.span(node.body)[0]
                end = max(self._bytes.rfind(b":", start, first + 1) + 1, start) or first
            else:
                continue
            text = self._bytes[start:end].decode()
            yield Statement(node, start, end, text, self._indent(start))

    def _indent(self, at: int) -> str:
        line = self._bytes[self._begin(at) : at].decode()
        return line[: len(line) - len(line.lstrip())]

    def _begin(self, at: int) -> int:
        return self._bytes.rfind(b"\n", 0, at) + 1

    def _end(self, at: int) -> int:
        """Return the position after the last byte of a line."""
        end = self._bytes.find(b"\n", at)
        return len(self._bytes) if end < 0 else end

    @cached_property
    def shared(self) -> set[int]:
        """The lines of functions and methods that `hf` calls."""
        hf = self.code(self.functions["hf"]) if "hf" in self.functions else ""
        names = set(re.findall(r"\w+", hf)) - {"hf", self.side}
        called = [f for f in (*self.functions.values(), *self.methods) if f.name.value in names]
        spans = [map(self.line, self.span(function)) for function in called]
        return {line for first, last in spans for line in range(first, last + 1)}

    @cached_property
    def _by_node(self) -> dict[cst.CSTNode, Statement]:
        return {one.node: one for one in self.statements}

    def statement_of(self, node: cst.CSTNode) -> Statement | None:
        """Return the statement that contains a node."""
        whole = (node, *self.around(node, cst.CSTNode))
        return next((self._by_node[one] for one in whole if one in self._by_node), None)

    def around(self, node: cst.CSTNode, kind: Any) -> list[Any]:
        """Return a node's ancestors of a kind, the innermost first."""
        found: list[Any] = []
        at: Any = node
        while (at := self.parents.get(at)) is not None:
            found += [at] if isinstance(at, kind) else []
        return found

    def trace_of(self, statement: Statement) -> Statement | None:
        """Return the outermost `with` around a statement, which is the trace; None for none."""
        blocks = self.around(statement.node, cst.With)
        return self.statement_of(blocks[-1]) if blocks else None

    # ── edits of whole statements ──────────────────────────────────────────────────────────────

    def put(self, statement: Statement, text: str) -> Splice:
        """Return the splice that replaces a statement or a header by lines with its indent."""
        return Splice(statement.start, statement.end, text.replace("\n", f"\n{statement.indent}"))

    def after(self, statement: Statement, text: str) -> Splice:
        """Return the splice that inserts lines below a statement, with its indent."""
        at = self._end(statement.end)
        return Splice(at, at, f"\n{text}".replace("\n", f"\n{statement.indent}"))

    def inside(self, statement: Statement, *lines: str) -> Splice:
        """Return the splice that inserts lines at the top of a compound statement's body."""
        first = self.span(statement.node.body.body[0])[0]  # type: ignore[attr-defined]
        at = self._begin(first)
        return Splice(at, at, "".join(f"{self._indent(first)}{line}\n" for line in lines))

    def below(self, statement: Statement, line: str) -> Splice:
        """Return the splice that inserts a line after a compound statement's body."""
        start, end = self.span(statement.node)
        at = self._end(start + len(self._bytes[start:end].rstrip(b"\n ")))
        return Splice(at, at, f"\n{statement.indent}{line}")

    def without(self, statement: Statement) -> Splice:
        """Return the splice that removes a simple statement, or leaves `pass` in an empty body."""
        parent = self.parents.get(statement.node)
        if isinstance(parent, cst.IndentedBlock) and len(parent.body) == 1:
            return Splice(statement.start, statement.end, "pass")
        end = min(self._end(statement.end) + 1, len(self._bytes))
        return Splice(self._begin(statement.start), end, "")

    def importing(self, module: str) -> tuple[Splice, ...]:
        """Return the splice that imports a module, none if the file already imports it."""
        binds = rf"^import (?:.*, *)?{module}(?:\.\w+)* *(?:[,;#].*)?$"
        if re.search(binds, self.text, flags=re.MULTILINE):
            return ()
        body = self.module.body
        first = next((one for one in body if not m.matches(one, _OPENING)), body[0])
        at = self.span(first)[0]
        return (Splice(at, at, f"import {module}\n\n"),)

    # ── values of modules ──────────────────────────────────────────────────────────────────────

    @cached_property
    def accesses(self) -> list[Access]:
        """The modules' values in the functions that may be edited, with their indexes."""
        nodes = self.expressions((cst.Attribute, cst.Name))
        return [found for node in nodes if (found := self.access(node)) is not None]

    def access(self, node: cst.CSTNode) -> Access | None:
        """Return the access that begins at a node, None if there is none."""
        parent = self.parents.get(node)
        if isinstance(node, cst.Attribute):
            whole = parent.attr.value if isinstance(parent, cst.Attribute) else ""
            tracer = "tracer" in self.code(node.value)
            if node.attr.value not in VALUES or tracer or whole == "logits":
                return None
        elif not isinstance(parent, cst.Subscript) or self.code(node) not in self._held_names:
            return None
        top: Any = node
        while isinstance(parent := self.parents.get(top), cst.Subscript) and parent.value is top:
            top = parent
        aimed = m.AssignTarget() | m.AugAssign(target=m.MatchIfTrue(lambda one: one is top))
        stored = parent is not None and m.matches(parent, aimed)
        return Access(top, self.code(node), self.indexed(top, node)[1], stored)

    def indexed(self, node: Any, base: cst.CSTNode | None = None) -> tuple[str, tuple[str, ...]]:
        """Return the text of a value without its indexes, down to `base`, and the indexes."""
        indexes: list[str] = []
        while isinstance(node, cst.Subscript) and node is not base:
            parts = (self.code(one.slice).strip().rstrip(",").strip() for one in node.slice)
            indexes.insert(0, ", ".join(parts))
            node = node.value
        return self.code(node), tuple(indexes)

    def full_path(self, path: str) -> str:
        """Return the text of a module's path, with a local name for a module replaced by its path:
        for `layer.mlp`, after `layer = model.layers[1]`, this is `model.layers[1].mlp`.
        """
        expanded: set[str] = set()
        while (found := re.match(r"\w+", path)) and found[0] in self._modules.keys() - expanded:
            expanded.add(found[0])
            path = self._modules[found[0]] + path[found.end() :]
        return path

    @cached_property
    def _modules(self) -> dict[str, str]:
        """The paths of the modules that the functions that may be edited assign to local names."""
        assigns = self.expressions(cst.Assign)
        named = (node for node in assigns if isinstance(node.targets[0].target, cst.Name))
        paths = {node.targets[0].target.value: self.code(node.value) for node in named}
        whole = re.compile(rf"[^\W\d]\w*(?:\.(?!(?:{'|'.join(VALUES)})\b)\w+|\[[^\[\]]*\])+")
        return {name: path for name, path in paths.items() if whole.fullmatch(path)}

    @cached_property
    def _held_names(self) -> frozenset[str]:
        """The names assigned a module's value without indexes or other operations."""
        value = m.Attribute(attr=m.OneOf(*map(m.Name, sorted(VALUES))))
        held = m.Assign(targets=[m.AssignTarget(target=m.Name())], value=value)
        assigns = (node for node in self.expressions(cst.Assign) if m.matches(node, held))
        return frozenset(self.code(node.targets[0].target) for node in assigns)


#: The statements that must come first: the file's docstring and future imports.
_OPENING = m.SimpleStatementLine(
    body=[m.Expr(m.SimpleString()) | m.ImportFrom(module=m.Name("__future__"))]
)


def outermost(splices: Iterable[Splice]) -> list[Splice]:
    """Return the splices, but of those that overlap only the first."""
    kept: list[Splice] = []
    for one in splices:
        if not any(one.start < other.end and other.start < one.end for other in kept):
            kept.append(one)
    return kept


def is_python(text: str) -> bool:
    """Return whether a text compiles."""
    try:
        compile(text, "<version>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def split_index(index: str) -> list[str]:
    """Return the parts of an index, such as `:` and `-1` for `:, -1`."""
    if not index:
        return []
    parts = cst.ensure_type(cst.parse_expression(f"_[{index}]"), cst.Subscript).slice
    module = cst.Module([])
    return [module.code_for_node(one.slice).strip() for one in parts]


def joined(core: str, indexes: Sequence[str]) -> str:
    """Return the text of a value followed by indexes."""
    return core + "".join(f"[{index}]" for index in indexes)


def names_in(text: str) -> set[str]:
    """Return the identifiers in a text, without attributes."""
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))


# ── patterns ───────────────────────────────────────────────────────────────────────────────────

#: In a pattern such as `X.to(A)` a single capital is a hole: it matches any expression.
HOLE = re.compile(r"\b[A-Z]\b")

_PRIMARY = (cst.Attribute, cst.Subscript, cst.Name, cst.Call, cst.BaseNumber, cst.BaseString)

#: Nodes that a match ignores.
_QUIET = (
    cst.BaseParenthesizableWhitespace,
    cst.Comma,
    cst.Dot,
    cst.LeftParen,
    cst.RightParen,
    cst.LeftSquareBracket,
    cst.RightSquareBracket,
)


@cache
def parse_pattern(pattern: str) -> cst.CSTNode:
    """Return the tree of a pattern, an expression or an assignment."""
    statement = cst.ensure_type(cst.parse_statement(pattern), cst.SimpleStatementLine).body[0]
    return statement.value if isinstance(statement, cst.Expr) else statement


def match(pattern: cst.CSTNode, node: cst.CSTNode) -> dict[str, Any] | None:
    """Return the nodes captured by a pattern's holes, None if the node does not match."""
    holes: dict[str, Any] = {}
    return holes if _fits(pattern, node, holes) else None


def _fits(pattern: cst.CSTNode, node: cst.CSTNode, holes: dict[str, Any]) -> bool:
    if isinstance(pattern, cst.Name) and HOLE.fullmatch(pattern.value):
        return bool(holes.setdefault(pattern.value, node).deep_equals(node))
    theirs, mine = (
        [one for one in each.children if not isinstance(one, _QUIET)] for each in (pattern, node)
    )
    if type(pattern) is not type(node) or len(theirs) != len(mine):
        return False
    if not mine:
        return getattr(pattern, "value", None) == getattr(node, "value", None)
    return all(_fits(a, b, holes) for a, b in zip(theirs, mine, strict=True))


def enclosed(node: cst.CSTNode, code: str) -> str:
    """Return the text of a node for use in a larger expression, in parentheses if needed."""
    return code if isinstance(node, _PRIMARY) and not node.lpar else f"({code})"
