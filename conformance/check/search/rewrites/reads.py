"""Reads: which of the tensors that a module gives, of which module, at which layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, Splice, joined, split_index
from conformance.check.values.known_values import Part

#: Names of one part in several families, on transformers and on engines.
_ALIKE = (
    ("mlp", "block_sparse_moe", "feed_forward", "moe"),
    ("self_attn", "attn", "attention", "self_attention"),
)

#: Names of the parts that people read of a layer, in the families that they write for.
_PARTS = ("self_attn", "attn", "mlp", "input_layernorm", "post_attention_layernorm")


def take_another_tensor(program: Program, clues: Clues) -> Iterator[Change]:
    """Take the sum of a module's two tensors, one of them, or its only one; with or without the
    batch axis that transformers' values have.
    """
    for access in program.accesses:
        if access.stored:
            continue
        here = joined(access.core, access.indexes)
        for cost, form in forms(access.core, access.indexes, clues):
            if form != here:
                words = "take another of the tensors that the module returns"
                yield Change((program.swap(access.node, form),), words, cost)


def forms(core: str, indexes: Sequence[str], clues: Clues) -> Iterator[tuple[int, str]]:
    """Yield the ways to take a module's value, each with its cost."""
    rest = indexes[1:] if indexes and indexes[0] in {"0", "1", "-1"} else indexes
    rests = list(dict.fromkeys(map(tuple, (*without_batch(rest), *without_batch(indexes)))))
    alone = clues.single and _is_a_layer(core, clues)
    for number, each in enumerate(rests):
        if alone:
            yield 1 + number, joined(core, each)
            continue
        whole = f"({core}[0] + {core}[1])"
        # Half of a residual stream is what is most often taken.
        summed = (1 if clues.dual and _gives_a_stream(core) else 4) + number
        yield summed, joined(whole, each)
        yield 3 + number, joined(f"{core}[0]", each)
        yield 3 + number, joined(core, each)
        yield 5 + number, joined(f"{core}[1]", each)
        if core.endswith(".input"):
            yield 2 + number, joined(f"sum({core}s[0])", each)
            yield 5 + number, joined(f"{core}s[0][1]", each)


def _is_a_layer(core: str, clues: Clues) -> bool:
    base, role = core.rpartition(".")[::2]
    return role == "output" and not any(base.endswith(f".{part}") for part in clues.modules)


def _gives_a_stream(core: str) -> bool:
    return not any(core.endswith(f"{part}.{role}") for part in _PARTS for role in ("output",))


def without_batch(indexes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return indexes as they are, then without what may count a batch axis."""
    found = [tuple(indexes)]
    if not indexes:
        return found
    head, *rest = indexes
    parts = split_index(head)
    if len(parts) > 1 and parts[0] in {":", "0", "...", "0:1"}:
        found.append((", ".join(parts[1:]), *rest))
    if parts in (["0"], [":"], ["None"]):
        found.append(tuple(rest))
    if len(parts) == 1 and parts[0] == "0" and rest:
        found.append(tuple(rest))
    return found


def take_another_part(program: Program, clues: Clues) -> Iterator[Change]:
    """Read what the value is on transformers: at another layer, of another module, or its input."""
    for access in program.accesses:
        base, role = access.core.rpartition(".")[::2]
        if access.stored or role not in {"output", "input", "inputs"}:
            continue
        place = _Place.of(base, clues.modules)
        for part in clues.meant:
            words = f"read `{part.name or 'the layer'}` where `{base.rpartition('.')[2]}` was read"
            for path in place.at(part):
                for cost, form in _given_or_gives(path, part.role, access.indexes, clues):
                    yield Change((program.swap(access.node, form),), words, 2 + cost)
        if clues.meant:
            continue
        for name in clues.modules:
            for where in ("output", "input"):
                for cost, form in _given_or_gives(
                    place.of_layer(name), where, access.indexes, clues
                ):
                    words = f"read `{name}`"
                    yield Change((program.swap(access.node, form),), words, 7 + cost)


def rename_module(program: Program, clues: Clues) -> Iterator[Change]:
    """Take another module of the layer, or the same by the name that other families have for it."""
    beside = tuple(name for name in clues.modules if "." not in name)
    for node in program.expressions(cst.Attribute):
        name = node.attr.value
        for cost, names in (*((3, alike) for alike in _ALIKE), (5, beside)):
            for other in names if name in names else ():
                if other != name:
                    change = (program.swap(node.attr, other),)
                    yield Change(change, f"take the module `{other}`", cost)


def _given_or_gives(
    path: str, role: str, indexes: Sequence[str], clues: Clues
) -> Iterator[tuple[int, str]]:
    """Yield the ways to take what a module gives, or what it is given."""
    if role == "input":
        # vLLM's norms are given, and return, the two tensors of a stream.
        for number, rest in enumerate(
            dict.fromkeys((*without_batch(indexes[1:]), *without_batch(indexes)))
        ):
            yield number, joined(f"sum({path}.inputs[0])", rest)
            yield number, joined(f"{path}.output[1]", rest)
    yield from forms(f"{path}.{role}", indexes, clues)


@dataclass(frozen=True)
class _Place:
    """The text of a module's path, taken apart at its layer: `layers[2]` of `layers`, `mlp`."""

    whole: str
    layer: str
    part: str
    index: str

    @classmethod
    def of(cls, base: str, modules: Sequence[str]) -> _Place:
        """Take a path apart at the module that it ends in."""
        ending = next(
            (m for m in sorted(modules, key=len, reverse=True) if base.endswith(f".{m}")), ""
        )
        layer = base.removesuffix(f".{ending}") if ending else base
        found = re.fullmatch(r"(.+)\[([^\[\]]+)\]", layer)
        return cls(base, layer, ending, found[2] if found else "")

    def of_layer(self, name: str) -> str:
        """Return the text of another module of the same layer."""
        return f"{self.layer}.{name}" if name else self.layer

    def at(self, part: Part) -> Iterator[str]:
        """Yield the texts of a module that may be at a place."""
        suffix = f".{part.name}" if part.name else ""
        if part.layer is None:
            model = self.whole.partition(".")[0]
            yield f"{model}.{part.name}" if part.name else self.whole
            return
        yield f"{self.layer}{suffix}"
        if self.index:
            stem = self.layer[: -len(self.index) - 2]
            if re.fullmatch(r"-?\d+", self.index):
                yield f"{stem}[{part.layer}]{suffix}"
            else:
                yield f"{stem}[{shifted(self.index, -1)}]{suffix}"


def take_another_layer(program: Program, clues: Clues) -> Iterator[Change]:
    """Count layers, steps and tokens one higher or lower."""
    for node in program.expressions(cst.Subscript):
        if len(node.slice) != 1 or not isinstance(node.slice[0].slice, cst.Index):
            continue
        index = node.slice[0].slice.value
        text = program.code(index)
        if re.fullmatch(r"'.*'|\".*\"|:", text):
            continue
        of_layers = bool(re.search(r"(layers|\.h|blocks)$", program.code(node.value)))
        shifts = (clues.shift,) if clues.shift and of_layers else ()
        for shift in (*shifts, 1, -1):
            cost = 1 if shift in shifts else 4 if of_layers else 6
            yield Change((program.swap(index, shifted(text, shift)),), "another index", cost)


def shifted(text: str, by: int) -> str:
    """Return the text of a number that is larger by this."""
    if re.fullmatch(r"-?\d+", text):
        return str(int(text) + by)
    found = re.fullmatch(r"(.+?) ([+-]) (\d+)", text)
    if found and found[1].count("(") == found[1].count(")"):
        by += int(found[3]) * (1 if found[2] == "+" else -1)
        text = found[1]
    return f"{text} {'+' if by > 0 else '-'} {abs(by)}" if by else text


def count_otherwise(program: Program, clues: Clues) -> Iterator[Change]:
    """Begin or end a range, a slice or a loop one earlier or later."""
    for node in program.expressions((cst.Integer, cst.Slice)):
        if isinstance(node, cst.Slice):
            for part in (node.lower, node.upper):
                if part is not None and not isinstance(part, (cst.Integer, cst.UnaryOperation)):
                    yield from _shifts(program, part, 6)
            if node.upper is None and node.lower is not None:
                continue
            if node.lower is not None and node.upper is not None:
                both = f":{program.code(node.upper)}"
                yield Change((program.swap(node, both),), "begin at the first", 5)
            continue
        parent = program.parents.get(node)
        if isinstance(parent, (cst.Slice, cst.Arg, cst.Comparison, cst.BinaryOperation)):
            yield from _shifts(program, node, 6)
        elif isinstance(parent, cst.UnaryOperation):
            yield from _shifts(program, parent, 7)


def _shifts(program: Program, node: cst.BaseExpression, cost: int) -> Iterator[Change]:
    text = program.code(node)
    for by in (1, -1):
        other = shifted(text, by)
        if not (text == "-1" and by == 1):
            yield Change((program.swap(node, other),), "another bound", cost)


def take_both_of_a_pair(program: Program, clues: Clues) -> Iterator[Change]:
    """Where a pair was unpacked, use the sum of both for the one that is used."""
    for node in program.expressions(cst.Assign):
        target = node.targets[0].target
        if not isinstance(target, cst.Tuple) or len(target.elements) != 2:
            continue
        if not _is_access(program, node.value):
            continue
        first, second = (program.code(element.value) for element in target.elements)
        names = [first, second]
        renamed: tuple[Splice, ...] = ()
        if "_" in names:
            at = names.index("_")
            names[at] = "rest"
            renamed = (program.swap(target.elements[at].value, "rest"),)
        whole = f"({names[0]} + {names[1]})"
        function = program.around(node, cst.FunctionDef)[0]
        end = program.span(node)[1]
        for use in program.walk(function):
            if not (isinstance(use, cst.Name) and use.value in {first, second} - {"_"}):
                continue
            if program.span(use)[0] > end and not _is_target(program, use):
                change = (*renamed, program.swap(use, whole))
                yield Change(change, "add the two tensors of the stream", 1)


def _is_access(program: Program, node: cst.BaseExpression) -> bool:
    return isinstance(node, cst.Attribute) and node.attr.value in {"output", "inputs"}


def _is_target(program: Program, node: cst.CSTNode) -> bool:
    return isinstance(program.parents.get(node), (cst.AssignTarget, cst.Param, cst.Attribute))


def drop_half_of_a_sum(program: Program, clues: Clues) -> Iterator[Change]:
    """Use one summand where two were added."""
    for node in program.expressions(cst.BinaryOperation):
        if not isinstance(node.operator, (cst.Add, cst.Subtract)):
            continue
        left, right = program.code(node.left), program.code(node.right)
        core = left.removesuffix("[0]")
        if (left, right) == (f"{core}[0]", f"{core}[1]"):
            cost = 5 if clues.dual else 1
            for text in (f"{core}.clone()", f"{left}.clone()"):
                yield Change((program.swap(node, text),), "the module returns one tensor", cost)
        for part in (node.left, node.right):
            cost = 4 if ".output" in program.code(node) or ".input" in program.code(node) else 6
            yield Change((program.swap(node, program.code(part)),), "leave out a summand", cost)
        other = "-" if isinstance(node.operator, cst.Add) else "+"
        text = f"{program.code(node.left)} {other} {program.code(node.right)}"
        yield Change((program.swap(node, text),), "the other sign", 6)


def add_final_norm(program: Program, clues: Clues) -> Iterator[Change]:
    """Apply the model's final norm before its head."""
    norms = [f"model.{path}" for path in clues.norms]
    for node in program.expressions(cst.BinaryOperation):
        if isinstance(node.operator, cst.MatrixMultiply):
            yield from _normed(program, node.left, norms)
    for node in program.expressions(cst.Call):
        if program.code(node.func).endswith("linear") and node.args:
            yield from _normed(program, node.args[0].value, norms)


def _normed(program: Program, node: cst.BaseExpression, norms: Sequence[str]) -> Iterator[Change]:
    for norm in norms:
        text = f"{norm}({program.code(node)})"
        yield Change((program.swap(node, text),), "apply the final norm", 4)
