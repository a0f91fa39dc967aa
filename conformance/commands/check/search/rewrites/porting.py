"""Ports: versions of a file in which `vllm` is a translation of the whole of `hf`.

The search for a file with only `hf` starts from the best port, and rewrites what is still wrong.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import libcst as cst

from conformance.commands.check.search.change import Clues
from conformance.commands.check.search.program import (
    Access,
    ParsedFile,
    Splice,
    Statement,
    is_python,
    joined,
    match,
    names_in,
    outermost,
    parse_pattern,
    split_index,
)
from conformance.commands.check.search.rewrites.logits import joined_projection
from conformance.commands.check.search.rewrites.reads import forms, is_stream
from conformance.commands.check.search.rewrites.requests import (
    opening_calls,
    request,
    steps_of_hf,
    trace_each_prompt,
)
from conformance.commands.check.search.rewrites.writes import changed_in_place, ways_to_write

#: Modules with a tuple as their output on transformers, and one tensor on vLLM.
_TUPLES = ("attn", "attention")

#: The logits on transformers, with their indexes.
_LOGITS = r"(\w+)\.(?:output\.logits|{}\.output)((?:\[.*\])*)"

#: Linear modules, which return a pair on vLLM.
_LINEAR = r"_proj$|^dense|^fc\d?$|^c_"

#: First parts of an index that can belong to a batch axis.
_BATCH = frozenset({":", "0", "...", "0:1", "None"})


def port_versions(program: ParsedFile, clues: Clues) -> list[str]:
    """Return the file with each possible `vllm`, the likeliest first; `hf` is `program`'s side."""
    ports = _ports(program, clues)
    ports += [replace(port, axis=True) for port in ports if not port.batch]
    found: list[str] = []
    for text in filter(is_python, (port.file() for port in ports)):
        program = ParsedFile(text, "vllm")
        split = trace_each_prompt(program, clues, together=True)  # for lists of prompts
        found += [program.replaced(change.splices) for change in split] or [text]
    return list(dict.fromkeys(filter(is_python, found)))


def port_statement(program: ParsedFile, statement: Statement, clues: Clues) -> list[str]:
    """Return a statement's possible forms on vLLM, the likeliest first, unchanged last."""
    found = [port.statement(statement) for port in _ports(program, clues)]
    return list(dict.fromkeys([*found, statement.text]))[:5]


def _ports(program: ParsedFile, clues: Clues) -> list[_Port]:
    order = ("sum", "first", "one") if clues.dual else ("one", "sum", "first")
    pairs = (True, False) if clues.dual else (False, True)
    return [
        _Port(program, clues, one, batch, pair)
        for one, pair, batch in product(order, pairs, (False, True))
    ]


def without_old_habits(program: ParsedFile, clues: Clues) -> tuple[str, str]:
    """Return the file with `hf` updated to the streams of current transformers, and a note on that;
    the same text and "" if nothing changes.
    """
    found: list[Splice] = []
    words = ""
    for access in filter(None, map(program.access, program.walk(program.functions["hf"].body))):
        first, rows = [*access.indexes, "", ""][:2]
        if is_stream(access.core, clues) and first == "0" and len(split_index(rows)) > 1:
            text = joined(access.core, access.indexes[1:])
            found.append(program.swap(access.node, text))
            words = words or (
                f"`{joined(access.core, access.indexes)}` is of older transformers, whose layers "
                "returned a tuple: now it takes columns of the first prompt, so `hf` is read as "
                f"`{text}`"
            )
    return program.replaced(outermost(found)), words


@dataclass(frozen=True)
class _Port:
    """One way to write `hf` for vLLM. `tensors` says which of a layer's tensors form the stream.
    `batch` keeps the indexes of transformers' batch axis. `pairs` assumes two tensors from modules
    that return them only in some places: norms of a layer but not of queries, linear modules but
    not on every engine.
    """

    program: ParsedFile
    clues: Clues
    tensors: str
    batch: bool
    pairs: bool
    axis: bool = False

    def file(self) -> str:
        """Return the file with `vllm`, and with ported copies of the functions that `hf` calls."""
        names = self._called()
        copies = []
        for name in (*names, "hf"):
            function = self.program.functions[name]
            splices = [
                splice
                for statement in self.program.statements_of(function)
                for splice in (*self._whole_write(statement), *self._put_back(statement))
            ]
            splices += self._of_expression(function.body)
            body = self._part(*self.program.span(function), splices)
            text = re.sub(r"\bdef hf\b", "def vllm", body.strip("\n"), count=1)
            for other in names:
                text = re.sub(rf"(?<![\w.]){other}\b", f"{other}_vllm", text)
            copies.append(text)
        port = "\n\n\n".join(copies)
        if "vllm" in self.program.functions:
            return self.program.replaced([self.program.swap(self.program.functions["vllm"], port)])
        return f"{self.program.text.rstrip()}\n\n\n{port}\n"

    def statement(self, statement: Statement) -> str:
        """Return a statement ported to vLLM, for a compound one its header."""
        found = list(self._whole_write(statement))
        body = (cst.BaseSuite, cst.BaseCompoundStatement, cst.Else)
        for root in statement.node.children:
            found += self._of_expression(root) if not isinstance(root, body) else ()
        text = self._part(statement.start, statement.end, found)
        return text.replace(f"\n{statement.indent}", "\n")

    def _part(self, start: int, end: int, splices: Iterable[Splice]) -> str:
        """Return a byte range of the file, ported to vLLM."""
        return self.program.part(start, end, outermost(splices))

    def _called(self) -> list[str]:
        """Return the names of the functions that `hf` calls and that use modules' values."""
        program, found, waiting = self.program, list[str](), ["hf"]
        head = parse_pattern(f"X.{self.clues.head}(A)")
        while waiting:
            for name in sorted(names_in(program.code(program.functions[waiting.pop()]))):
                function = program.functions.get(name)
                if function is None or name in {"hf", *found}:
                    continue
                inside = program.walk(function.body)
                if any(program.access(node) or match(head, node) is not None for node in inside):
                    found.append(name)
                    waiting.append(name)
        return found

    def _put_back(self, statement: Statement) -> Iterator[Splice]:
        """Yield the splice that writes a stream, changed in place as a sum, into both tensors."""
        name = changed_in_place(statement) if self.tensors == "sum" else ""
        if name and (held := self._held(name)):
            name = f"{name}[0]" if self.axis else name
            yield self.program.after(statement, f"{held.core} = ({name}, {name} * 0)")

    def _of_expression(self, root: cst.CSTNode) -> Iterator[Splice]:
        """Yield the splices for the requests and the modules' values in an expression or body."""
        program = self.program
        head = parse_pattern(f"X.{self.clues.head}(A)")
        for node in program.walk(root):
            if isinstance(node, cst.Call) and node in opening_calls(program, node):
                yield program.swap(node, request(program, node, steps_of_hf(program)))
            elif holes := match(head, node):  # vLLM's head cannot be called: multiply by it
                value = self._text_of(holes["A"])
                weight = f"{program.code(holes['X'])}.{self.clues.head}.weight.T"
                yield program.swap(node, f"({value} @ {weight})")
            elif isinstance(node, (cst.Attribute, cst.Subscript)) and (
                found := re.fullmatch(_LOGITS.format(self.clues.head), program.code(node))
            ):
                yield program.swap(node, self._logits(*found.groups()))
            elif (access := program.access(node)) is not None:
                yield program.swap(access.node, self._value(access))

    def _whole_write(self, statement: Statement) -> Iterator[Splice]:
        """Yield the splice for a write to both tensors: assign a value to one and zero to the
        other, or scale both. Additions go into one tensor only.
        """
        node = statement.node
        one = node.body[0] if isinstance(node, cst.SimpleStatementLine) else None
        if self.tensors != "sum" or not isinstance(one, (cst.Assign, cst.AugAssign)):
            return
        target: Any = one.targets[0].target if isinstance(one, cst.Assign) else one.target
        while isinstance(target, cst.Subscript):
            target = target.value
        access = self.program.access(target)
        sign = "=" if isinstance(one, cst.Assign) else self.program.code(one.operator).strip()
        if access and "." in access.core and self._is_stream(access) and sign in {"=", "*=", "/="}:
            value = self._text_of(one.value)
            _, _, text = next(ways_to_write(access.core, self._indexes(access), sign, value))
            yield self.program.put(statement, text)

    def _text_of(self, node: cst.BaseExpression) -> str:
        """Return an expression ported to vLLM."""
        text = self._part(*self.program.span(node), self._of_expression(node))
        return text if re.fullmatch(r"[\w.]+", text) else f"({text})"

    def _value(self, access: Access) -> str:
        """Return a module's value with its indexes, ported to vLLM."""
        value = self._tensor(access)
        if self.axis and "." in access.core and (access.indexes or not access.stored):
            value = f"{value}[None]"
        return joined(value, self._indexes(access))

    def _tensor(self, access: Access) -> str:
        """Return a module's value without its indexes, ported to vLLM."""
        core = access.core
        if projection := joined_projection(core, self.clues.widths):
            return projection
        part, role = core.split(".")[-2:] if "." in core else (core, "")
        if self.clues.dual and core.endswith("].input"):
            return min(forms(core, (), self.clues), key=lambda one: one[0])[1]
        if self.pairs and self.clues.dual and role == "output" and re.search(r"norm$|^ln_", part):
            return f"{core}[0]"  # the other tensor is the sum so far
        pair = self.pairs or self.tensors != "one"
        if pair and role == "output" and re.search(_LINEAR, part):
            return f"{core}[0]"  # the other tensor is the bias, not yet added
        if not self._is_stream(access) or "." not in core or self.tensors == "one":
            return core
        whole = self.tensors == "sum" and not access.stored
        return f"({core}[0] + {core}[1])" if whole else f"{core}[0]"

    def _logits(self, model: str, indexes: str) -> str:
        """Return the last token's logits, [1, vocabulary] on vLLM, indexed as on transformers."""
        each = re.findall(r"\[(.*?)\](?=\[|$)", indexes)
        batch, _, *rest = [*(part for index in each for part in split_index(index)), "", ""]
        first = [] if batch == "0" else [":"]
        kept = ", ".join([*first, *filter(None, rest)])
        whole = f"{model}.logits[0]" if batch == "0" else f"{model}.logits"
        return joined(whole, [kept] if kept != "".join(first) else [])

    def _is_stream(self, access: Access) -> bool:
        """Return whether a value is a layer's output, not that of a part of a layer."""
        if "." in access.core:
            return is_stream(access.core, self.clues)
        return self._held(access.core) is not None

    def _held(self, name: str) -> Access | None:
        """Return the read of a layer's stream that a name holds, None for any other name."""
        for held in self.program.accesses:
            statement = self.program.statement_of(held.node)
            named = statement and re.match(rf"{re.escape(name)} = ", statement.text)
            if named and "." in held.core and is_stream(held.core, self.clues):
                return held
        return None

    def _indexes(self, access: Access) -> Sequence[str]:
        """Return the indexes without the batch axis, and without the choice from a tuple."""
        found = list(access.indexes)
        part = access.core.rpartition(".")[0].rpartition(".")[2]
        if found[:1] == ["0"] and part.endswith(_TUPLES):
            found = found[1:]
        if self.batch or self.axis or not found:
            return found
        head, *rest = split_index(found[0])
        if head not in _BATCH:
            return found
        if head != "0" and rest[:1] == ["-1"] and not access.stored:
            rest[0] = "-1:"  # keeps the axis of size 1 that transformers' value has
        rows = [", ".join(rest), *found[1:]] if rest else found[1:]
        return rows or [":"] * access.stored
