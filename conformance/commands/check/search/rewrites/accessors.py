"""Rewrites for `trace(lm)`: accessors, which are the same on every engine, for raw values."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import (
    ParsedFile,
    Splice,
    joined,
    outermost,
    split_index,
)
from conformance.commands.check.search.rewrites.logits import EMBEDDINGS
from conformance.commands.check.search.rewrites.reads import ATTENTION, MLP, without_batch
from conformance.commands.check.search.rewrites.writes import stores

_WORDS = "the accessor is the same on every engine"

#: A list of layers, and a layer of it with the part's path, in nnsight's tree below `lm.model`.
_LIST = r"(?:\w+\.)*(?:layers|h|blocks)"
_IN_LAYER = re.compile(rf"{_LIST}\[(.+?)\](?:\.(.+))?", re.DOTALL)

#: A value in nnsight's tree: the adapter, the module's path, and the value's kind.
_RAW = re.compile(r"(\w+)\.model\.(.+)\.(output|input)", re.DOTALL)

#: The ways to read logits there.
_LOGITS = re.compile(
    r"(\w+)\.model\.(?:(?:lm_head|embed_out)\.output|output\.logits|logits(?:\.output)?)"
)

_EMBEDDING = re.compile(rf"(?:\w+\.)*(?:{EMBEDDINGS})")
_NORM = re.compile(r"(?:\w+\.)*(?:norm|ln_f|final_layernorm|final_layer_norm)")
_PROJECTION = re.compile(r"(?:o_proj|c_proj|out_proj|dense)")


def take_accessor(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Read or write through an accessor of `lm`: at one place, or at all places."""
    if program.side != "trace":
        return
    loops = dict(_loops(program))
    found = [*_raw_values(program, loops), *((ways, False) for ways in _raw_logits(program))]
    for ways, together in found:
        for cost, splice in enumerate(ways if not together else (), 2):
            yield change(cost, _WORDS, splice)
    if len(found) > 1 or loops:
        for way in range(2):
            splices = [ways[min(way, len(ways) - 1)] for ways, _ in found]
            yield change(3 + way, _WORDS, *outermost([*loops.values(), *splices]), anywhere=True)


def _loops(program: ParsedFile) -> Iterator[tuple[str, Splice]]:
    """Yield the names that loops give to the layers of nnsight's tree, and the splices that make
    them layers of the adapter.
    """
    for loop in program.expressions((cst.For, cst.CompFor)):
        for target, path in ((r"(\w+)", "{}"), (r"\w+, (\w+)", r"enumerate\({}\)")):
            name = re.fullmatch(target, program.code(loop.target))
            whole = program.code(loop.iter)
            layers = re.fullmatch(path.format(rf"((\w+)\.model\.{_LIST}(\[.*\])?)"), whole)
            if name and layers:
                text = whole.replace(layers[1], f"{layers[2]}.layers{layers[3] or ''}")
                yield name[1], program.swap(loop.iter, text)


def _raw_values(
    program: ParsedFile, loops: Mapping[str, Splice]
) -> Iterator[tuple[list[Splice], bool]]:
    """Yield, for each value in nnsight's tree, the splices that take an accessor, the likeliest
    first, and whether it needs a loop over the accessor's layers.
    """
    written = {one[0].node: one[1:] for one in stores(program)}
    for access in program.accesses:
        name, _, rest = access.core.partition(".")
        if name in loops and (part := _of_layer(*rest.rpartition(".")[::2])):
            accessor = f"{name}{part}"
        elif found := _RAW.fullmatch(program.full_path(access.core)):
            accessor = _accessor(*found.groups())
        else:
            continue
        ways: list[Splice] = []
        if access.node in written:
            statement, sign, value = written[access.node]
            for indexes in _without_batch(access.indexes):
                text = _written(program, accessor, indexes, sign, value)
                ways.append(program.put(statement, text))
        else:
            ways += [program.swap(access.node, form) for form in _reads(accessor, access.indexes)]
        if accessor and ways:
            yield ways, name in loops


def _accessor(lm: str, path: str, role: str) -> str:
    """Return the accessor for a module's output or input, "" if there is none."""
    if found := _IN_LAYER.fullmatch(path):
        part = _of_layer(found[2] or "", role)
        return f"{lm}.layers[{found[1]}]{part}" if part else ""
    if _EMBEDDING.fullmatch(path) and role == "output":
        return f"{lm}.embedding.output"
    return f"{lm}.norm.{role}" if _NORM.fullmatch(path) else ""


def _of_layer(part: str, role: str) -> str:
    """Return the end of the accessor for a value of a layer or of its part, "" if there is none."""
    branch, _, inner = part.partition(".")
    if not part:
        return ".stream" if role == "output" else ".input"
    if branch in ATTENTION and _PROJECTION.fullmatch(inner):
        return ".attention.output" if role == "output" else ".attention.heads.flatten(1)"
    if inner:
        return ""
    return f".attention.{role}" if part in ATTENTION else f".mlp.{role}" if part in MLP else ""


def _without_batch(indexes: Sequence[str]) -> list[tuple[str, ...]]:
    """Return the indexes without one of a batch axis, and also without one of a tuple's tensors."""
    of_tuple = without_batch(indexes[1:])[-1:] if indexes[:1] in (("0",), ("1",)) else []
    return list(dict.fromkeys((without_batch(indexes)[-1], *of_tuple)))


def _reads(accessor: str, indexes: Sequence[str]) -> list[str]:
    """Return the ways to read an accessor in the place of a value with these indexes: without a
    batch axis, and with the one that transformers' value has.
    """
    inner = indexes[1:] if indexes[:1] in (("0",), ("1",)) else indexes
    plain = [joined(accessor, form) for form in _without_batch(indexes)]
    axis = [joined(f"{accessor}[None]", form) for form in (indexes, inner)]
    return list(dict.fromkeys([plain[0], *axis[:1], *plain[1:], *axis[1:]]))


def _written(
    program: ParsedFile, accessor: str, indexes: Sequence[str], sign: str, value: str
) -> str:
    """Return the statements that write to an accessor, whose reads are copies."""
    if all(index in {":", "...", ":, :"} for index in indexes):
        return f"{accessor} {sign} {value}"
    name = next(one for one in ("rows", "written", "written_rows") if one not in program.text)
    part = joined(name, indexes)
    return f"{name} = {accessor}\n{part} {sign} {value}\n{accessor} = {name}"


def _raw_logits(program: ParsedFile) -> Iterator[list[Splice]]:
    """Yield the reads of logits and their writes. `lm.logits` are the last token's, [vocabulary];
    the lens of the last stream gives all tokens'.
    """
    for node in program.expressions((cst.Attribute, cst.Subscript)):
        parent = program.parents.get(node)
        if isinstance(parent, cst.Subscript) and parent.value is node:
            continue
        core, indexes = program.indexed(node)
        found = _LOGITS.fullmatch(program.full_path(core))
        whole = isinstance(parent, cst.Attribute) and f"{core}.{parent.attr.value}"
        if not found or (whole and _LOGITS.fullmatch(program.full_path(whole))):
            continue
        parts = [part for index in indexes for part in split_index(index)]
        rest = [", ".join(parts[2:])] if parts[2:] else []
        logits, lens = f"{found[1]}.logits", f"{found[1]}.lens({found[1]}.layers[-1].stream)"
        statement = program.statement_of(node)
        if isinstance(parent, (cst.AssignTarget, cst.AugAssign)) and statement:
            if not rest and (written := re.search(r" [-+*/]?= ", statement.text)):
                text = f"{logits}{statement.text[written.start() :]}"
                yield [program.put(statement, text)]
            continue
        one = [joined(logits, rest), joined(f"{logits}[None]", [f":, {rest[0]}"] if rest else [])]
        forms = one if parts[:1] in (["0"], ["-1"]) else one[::-1]
        forms += [joined(lens, form) for form in _without_batch(indexes)]
        forms.append(joined(f"{lens}[None]", indexes))
        yield [program.swap(node, form) for form in dict.fromkeys(forms)]
