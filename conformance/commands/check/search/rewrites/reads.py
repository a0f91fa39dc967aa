"""Rewrites of reads: another tensor of a module's output, another module, another layer."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import product

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import ParsedFile, joined, split_index
from conformance.commands.check.values.known_values import ValuePlace

#: Names of the same part in several families, on transformers and on engines.
MLP = ("mlp", "block_sparse_moe", "feed_forward", "moe")
ATTENTION = ("self_attn", "attn", "attention", "self_attention")

#: A sum of a module's two tensors.
_SUM = re.compile(r"\(.*\[0\] \+ |sum\(")
_BOTH = "add the two tensors of the stream"

#: Values that are no pairs of a residual stream: inputs, and outputs of parts of a layer.
_PARTS = re.compile(r"\.(self_attn|attn|mlp|(input|post_attention)_layernorm)\.output$|\.input$")


def take_another_tensor(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Take the sum of a module's two tensors, or one of them; drop or keep a batch index."""
    for access in program.accesses:
        if not access.stored:
            for cost, form in forms(access.core, access.indexes, clues):
                words = _BOTH if _SUM.match(form) else "take another of the module's tensors"
                yield change(cost, words, program.swap(access.node, form))


def forms(core: str, indexes: Sequence[str], clues: Clues) -> Iterator[tuple[int, str]]:
    """Yield the ways to take a module's value, each with its cost."""
    rest = indexes[1:] if indexes and indexes[0] in {"0", "1", "-1"} else indexes
    # The most frequent error is a read of half of the residual stream.
    whole = 1 if clues.dual and not _PARTS.search(core) else 4
    ways = [(whole, f"({core}[0] + {core}[1])"), (3, f"{core}[0]"), (3, core), (5, f"{core}[1]")]
    if re.search(r"\[[^\W\d]", core):  # the first layer's norm returns one tensor, the others two
        ways.append((4, f"({core}[0] if isinstance({core}, tuple) else {core})"))
    if core.endswith(".input"):
        ways += [(2, f"sum({core}s[0])"), (5, f"{core}s[0][1]")]
        base = core.removesuffix(".input")
        norms = [one for one in clues.modules if re.fullmatch(r"\w*(norm|ln_)\w*", one)]
        if base.endswith("]"):  # a layer on vLLM is given the positions first
            ways += [(1, f"sum({base}.{norm}.inputs[0])") for norm in norms]
    if clues.single and is_stream(core, clues):
        ways = [(1, core)]
    for number, each in enumerate(dict.fromkeys((*without_batch(rest), *without_batch(indexes)))):
        yield from ((cost + number, joined(way, each)) for cost, way in ways)


def is_stream(core: str, clues: Clues) -> bool:
    """Return whether a value is a layer's output, not that of a part of a layer."""
    base, _, role = core.rpartition(".")
    parts = {name.rpartition(".")[2] for name in clues.modules}
    return role == "output" and base.rpartition(".")[2] not in {*parts, clues.head}


def without_batch(indexes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the indexes, then also without an index that can belong to a batch axis."""
    found = [tuple(indexes)]
    if indexes:
        first, *others = split_index(indexes[0])
        if others and first in {":", "0", "...", "0:1"}:
            found.append((", ".join(others), *indexes[1:]))
        elif not others and first in {"0", ":", "None"}:
            found.append(tuple(indexes[1:]))
    return found


def take_another_part(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Read another layer's or module's output or input: one that holds the intended value."""
    for access in program.accesses:
        base, role = access.core.rpartition(".")[::2]
        if access.stored or not role:
            continue
        unknown = [
            ValuePlace(0, name, where) for name in clues.modules for where in ("output", "input")
        ]
        for part in clues.meant or unknown:
            words = f"read `{part.name or 'the layer'}` where `{base.rpartition('.')[2]}` was read"
            for path in list(_paths(base, part, clues.modules))[: 2 if clues.meant else 1]:
                for cost, form in _given_or_gives(path, part.role, access.indexes, clues):
                    taken = program.swap(access.node, form)
                    yield change(cost + (2 if clues.meant else 7), words, taken)


def rename_module(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Take another module of the layer, or the same module by its name in other families."""
    nodes = list(program.expressions(cst.Attribute))
    for alike, other in ((names, one) for names in (MLP, ATTENTION) for one in names):
        swaps = [program.swap(one.attr, other) for one in nodes if one.attr.value in alike]
        yield change(3, f"take the module `{other}`", *swaps, anywhere=True)
    for node, other in product(nodes, beside := [one for one in clues.modules if "." not in one]):
        if node.attr.value in beside:
            yield change(5, f"take the module `{other}`", program.swap(node.attr, other))


def _given_or_gives(
    path: str, role: str, indexes: Sequence[str], clues: Clues
) -> Iterator[tuple[int, str]]:
    """Yield the ways to read a module's output or input, each with its cost."""
    if role == "input":
        # vLLM's norms take and return the two tensors of a stream.
        rests = dict.fromkeys((*without_batch(indexes[1:]), *without_batch(indexes)))
        for number, rest in enumerate(rests):
            yield number, joined(f"sum({path}.inputs[0])", rest)
            yield number, joined(f"{path}.output[1]", rest)
    yield from forms(f"{path}.{role}", indexes, clues)


def _paths(base: str, part: ValuePlace, modules: Sequence[str]) -> Iterator[str]:
    """Yield texts for the module at a place, given another module's `base`; same layer first."""
    if part.layer is None:
        yield f"{base.partition('.')[0]}.{part.name}" if part.name else base
        return
    own = max((one for one in modules if base.endswith(f".{one}")), key=len, default="")
    layer = base.removesuffix(f".{own}") if own else base
    name = f".{part.name}" if part.name else ""
    yield f"{layer}{name}"
    if found := re.fullmatch(r"(.+)\[([^\[\]]+)\]", layer):
        counted = re.fullmatch(r"-?\d+", found[2])
        yield f"{found[1]}[{part.layer if counted else shifted(found[2], -1)}]{name}"


def take_another_index(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Shift an index of layers, steps, tokens, or one of several axes, by one."""
    for node in program.expressions(cst.Subscript):
        of_layers = re.search(r"(layers|\.h|blocks)$", program.code(node.value))
        several = len(node.slice) > 1
        for place in (each.slice for each in node.slice if isinstance(each.slice, cst.Index)):
            text = program.code(place.value)
            counts = isinstance(place.value, cst.Integer) if several else text[0] not in "'\""
            for shift in (1, -1) if counts else ():
                cost = 7 if several else 4 if of_layers else 6
                yield change(cost, "another index", program.swap(place, shifted(text, shift)))


def shifted(text: str, by: int) -> str:
    """Return the text of an integer expression, increased by a number."""
    if re.fullmatch(r"-?\d+", text):
        return str(int(text) + by)
    found = re.fullmatch(r"(.+?) ([+-]) (\d+)", text)
    if found and found[1].count("(") == found[1].count(")"):
        by += int(found[3]) * (1 if found[2] == "+" else -1)
        text = found[1]
    return f"{text} {'+' if by > 0 else '-'} {abs(by)}" if by else text
