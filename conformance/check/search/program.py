"""A user's file as a syntax tree whose parts know their place in the text."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import libcst as cst
from libcst.metadata import ByteSpanPositionProvider, MetadataWrapper, ParentNodeProvider

#: Statements with a body: their header is edited, their body stays.
COMPOUND = (cst.With, cst.For, cst.While, cst.If, cst.Try)

#: The attributes by which nnsight gives what a module computes.
VALUES = frozenset({"output", "input", "inputs"})


@dataclass(frozen=True, order=True)
class Splice:
    """Bytes `start` to `end` of a text, to be replaced by `text`."""

    start: int
    end: int
    text: str


@dataclass(frozen=True, eq=False)
class Statement:
    """A simple statement, or the header of a compound one, as bytes of the file."""

    node: cst.CSTNode
    start: int
    end: int
    line: int
    text: str
    indent: str


@dataclass(frozen=True, eq=False)
class Access:
    """A value of a module with the indexes that stand behind it, as `layer.output[0][:, -1]`.

    `core` is the text up to `.output`, `.input` or `.inputs`, or a name that holds such a value.
    """

    node: cst.BaseExpression
    core: str
    indexes: tuple[str, ...]
    stored: bool


class Program:
    """The text of a file, parsed. Raises `cst.ParserSyntaxError` for what is no Python."""

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
        low, high = 0, len(self._newlines)
        while low < high:
            middle = (low + high) // 2
            low, high = (middle + 1, high) if self._newlines[middle] < at else (low, middle)
        return low + 1

    def replaced(self, splices: Iterable[Splice]) -> str:
        """Return the text with these parts replaced. They do not overlap."""
        return self.part(0, len(self._bytes), splices)

    def part(self, start: int, end: int, splices: Iterable[Splice]) -> str:
        """Return bytes `start` to `end` of the text with these parts of them replaced."""
        found = self._bytes[start:end]
        for one in sorted(splices, reverse=True):
            found = found[: one.start - start] + one.text.encode() + found[one.end - start :]
        return found.decode()

    def swap(self, node: cst.CSTNode, text: str) -> Splice:
        """Replace a node's text."""
        return Splice(*self.span(node), text)

    # ── what may be edited ─────────────────────────────────────────────────────────────────────

    @cached_property
    def edited(self) -> list[cst.FunctionDef]:
        """The side's function first, then the others of the file, but `hf`: it is the reference."""
        others = [f for name, f in self.functions.items() if name not in {self.side, "hf"}]
        return [self.functions[self.side], *others, *self.methods]

    @cached_property
    def methods(self) -> list[cst.FunctionDef]:
        """The methods of the classes at the top of the file."""
        classes = (one for one in self.module.body if isinstance(one, cst.ClassDef))
        parts = (part for one in classes for part in one.body.body)
        return [part for part in parts if isinstance(part, cst.FunctionDef)]

    def walk(self, root: cst.CSTNode) -> Iterator[cst.CSTNode]:
        """Yield a node and all below it."""
        waiting = [root]
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(reversed(node.children))

    def expressions(self, kind: Any) -> Iterator[Any]:
        """Yield the nodes of a kind in all that may be edited."""
        for function in self.edited:
            yield from (node for node in self.walk(function.body) if isinstance(node, kind))

    def statements_of(self, function: cst.FunctionDef) -> list[Statement]:
        """Return the statements of a function, in the order of the text."""
        return list(self._statements(function.body))

    @cached_property
    def statements(self) -> list[Statement]:
        """The statements of all that may be edited, in the order of the text in each function."""
        return [one for function in self.edited for one in self.statements_of(function)]

    def _statements(self, body: cst.CSTNode) -> Iterator[Statement]:
        for node in self.walk(body):
            if isinstance(node, cst.SimpleStatementLine):
                start = self.span(node.body[0])[0]
                end = self.span(node.body[-1])[1]
            elif isinstance(node, (*COMPOUND, cst.FunctionDef)):
                start, end = self.span(node)[0], self._header_end(node)
            else:
                continue
            yield Statement(
                node,
                start,
                end,
                self.line(start),
                self._bytes[start:end].decode(),
                self._indent(start),
            )

    def _header_end(self, node: cst.CSTNode) -> int:
        body = node.body  # type: ignore[attr-defined]
        first = self.span(body)[0]
        colon = self._bytes.rfind(b":", 0, first + 1)
        return colon + 1 if colon >= self.span(node)[0] else first

    def _indent(self, at: int) -> str:
        begin = self._bytes.rfind(b"\n", 0, at) + 1
        line = self._bytes[begin:at].decode()
        return line[: len(line) - len(line.lstrip())]

    def inside_of(self, name: str) -> list[Statement]:
        """Return the statements of the function of this name, wherever it is defined."""
        return [
            statement
            for statement in self.statements
            for function in self.functions_around(statement.node)[:1]
            if function.name.value == name
        ]

    @cached_property
    def shared(self) -> set[int]:
        """The lines of functions and methods that `hf` calls as well."""
        hf = self.code(self.functions["hf"]) if "hf" in self.functions else ""
        names = set(re.findall(r"\w+", hf)) - {"hf", self.side}
        return {
            line
            for function in (*self.functions.values(), *self.methods)
            if function.name.value in names
            for line in range(
                self.line(self.span(function)[0]), self.line(self.span(function)[1]) + 1
            )
        }

    def statement_of(self, node: cst.CSTNode) -> Statement | None:
        """Return the statement that a node is in."""
        by_node = self._by_node
        at: cst.CSTNode | None = node
        while at is not None:
            if at in by_node:
                return by_node[at]
            at = self.parents.get(at)
        return None

    @cached_property
    def _by_node(self) -> dict[cst.CSTNode, Statement]:
        return {one.node: one for one in self.statements}

    def around(self, node: cst.CSTNode, kind: Any) -> list[cst.CSTNode]:
        """Return the nodes of a kind that a node is in, the innermost first."""
        found, at = [], self.parents.get(node)
        while at is not None:
            if isinstance(at, kind):
                found.append(at)
            at = self.parents.get(at)
        return found

    def functions_around(self, node: cst.CSTNode) -> list[cst.FunctionDef]:
        """Return the functions that a node is in, the innermost first."""
        return [
            one for one in self.around(node, cst.FunctionDef) if isinstance(one, cst.FunctionDef)
        ]

    # ── edits of whole statements ──────────────────────────────────────────────────────────────

    def after(self, statement: Statement, *lines: str) -> Splice:
        """Insert lines below a statement, with its indent."""
        at = self._bytes.find(b"\n", statement.end)
        at = len(self._bytes) if at < 0 else at
        return Splice(at, at, "".join(f"\n{statement.indent}{line}" for line in lines))

    def before(self, statement: Statement, *lines: str) -> Splice:
        """Insert lines above a statement, with its indent."""
        at = self._bytes.rfind(b"\n", 0, statement.start) + 1
        return Splice(at, at, "".join(f"{statement.indent}{line}\n" for line in lines))

    def inside(self, statement: Statement, *lines: str) -> Splice:
        """Insert lines at the top of a compound statement's body."""
        body = statement.node.body.body  # type: ignore[attr-defined]
        first = self.span(body[0])[0]
        at = self._bytes.rfind(b"\n", 0, first) + 1
        return Splice(at, at, "".join(f"{self._indent(first)}{line}\n" for line in lines))

    def below(self, statement: Statement, *lines: str) -> Splice:
        """Insert lines behind a compound statement with all of its body."""
        at = self.span(statement.node)[1]
        while at > 0 and self._bytes[at - 1 : at] in {b"\n", b" "}:
            at -= 1
        end = self._bytes.find(b"\n", at)
        at = len(self._bytes) if end < 0 else end
        return Splice(at, at, "".join(f"\n{statement.indent}{line}" for line in lines))

    def without(self, statement: Statement) -> Splice:
        """Remove a simple statement; what would be an empty body keeps `pass`."""
        parent = self.parents.get(statement.node)
        alone = isinstance(parent, cst.IndentedBlock) and len(parent.body) == 1
        if alone:
            return Splice(statement.start, statement.end, "pass")
        begin = self._bytes.rfind(b"\n", 0, statement.start) + 1
        end = self._bytes.find(b"\n", statement.end)
        return Splice(begin, len(self._bytes) if end < 0 else end + 1, "")

    def importing(self, module: str) -> tuple[Splice, ...]:
        """Import a module at the top of the file, where it is not imported."""
        if re.search(rf"^import {module}\b", self.text, flags=re.MULTILINE):
            return ()
        first = next((one for one in self.module.body if not _is_opening(one)), self.module.body[0])
        at = self.span(first)[0]
        return (Splice(at, at, f"import {module}\n\n"),)

    # ── values of modules ──────────────────────────────────────────────────────────────────────

    @cached_property
    def accesses(self) -> list[Access]:
        """The values of modules in all that may be edited, each with all of its indexes."""
        return [
            found
            for function in self.edited
            for node in self.walk(function.body)
            if (found := self.access(node)) is not None
        ]

    def access(self, node: cst.CSTNode) -> Access | None:
        """Return the access that begins at a node, None where none does."""
        if isinstance(node, cst.Attribute):
            if node.attr.value not in VALUES or "tracer" in self.code(node.value):
                return None
            parent = self.parents.get(node)
            if isinstance(parent, cst.Attribute) and parent.attr.value == "logits":
                return None
        elif not (isinstance(node, cst.Name) and node.value in self._held_names) or not isinstance(
            self.parents.get(node), cst.Subscript
        ):
            return None
        top: cst.CSTNode = node
        indexes: list[str] = []
        while isinstance(parent := self.parents.get(top), cst.Subscript) and parent.value is top:
            indexes.append(", ".join(map(self._plain, parent.slice)))
            top = parent
        stored = self._is_stored(top)
        return Access(top, self.code(node), tuple(indexes), stored)  # type: ignore[arg-type]

    def _plain(self, element: cst.SubscriptElement) -> str:
        return self.code(element.slice).strip().rstrip(",").strip()

    @cached_property
    def _held_names(self) -> frozenset[str]:
        """Names that hold a module's value as it is."""
        found = set()
        for function in self.edited:
            for node in self.walk(function.body):
                if isinstance(node, cst.Assign) and len(node.targets) == 1:
                    target, value = node.targets[0].target, node.value
                    held = isinstance(value, cst.Attribute) and value.attr.value in VALUES
                    if held and isinstance(target, cst.Name):
                        found.add(target.value)
        return frozenset(found)

    def _is_stored(self, node: cst.CSTNode) -> bool:
        parent = self.parents.get(node)
        if isinstance(parent, cst.AssignTarget):
            return True
        return isinstance(parent, (cst.AugAssign, cst.AnnAssign)) and parent.target is node


def _is_opening(node: cst.CSTNode) -> bool:
    """Whether a statement is the file's docstring or a future import, which come first."""
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    one = node.body[0]
    docstring = isinstance(one, cst.Expr) and isinstance(one.value, cst.SimpleString)
    future = (
        isinstance(one, cst.ImportFrom)
        and isinstance(one.module, cst.Name)
        and one.module.value == "__future__"
    )
    return docstring or future


def is_python(text: str) -> bool:
    """Return whether a text can be compiled."""
    try:
        compile(text, "<version>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError):
        return False
    return True


def header(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Return the expressions of a statement, without the body of a compound one."""
    if isinstance(node, cst.For):
        return [node.target, node.iter]
    if isinstance(node, (cst.If, cst.While)):
        return [node.test]
    if isinstance(node, cst.With):
        return [item.item for item in node.items]
    if isinstance(node, cst.SimpleStatementLine):
        return list(node.body)
    return []


def split_index(index: str) -> list[str]:
    """Return the parts of an index, as `:` and `-1` of `:, -1`."""
    parts, depth, begin = [], 0, 0
    for at, char in enumerate(index):
        depth += (char in "([{") - (char in ")]}")
        if char == "," and not depth:
            parts.append(index[begin:at].strip())
            begin = at + 1
    return [*parts, index[begin:].strip()]


def joined(core: str, indexes: Sequence[str]) -> str:
    """Return the text of a value with indexes behind it."""
    return core + "".join(f"[{index}]" for index in indexes)


def names_in(text: str) -> set[str]:
    """Return the identifiers of a text that follow no dot."""
    return set(re.findall(r"(?<![\w.])[A-Za-z_]\w*", text))
