"""Rewrites of logits: on vLLM `model.logits` is the tensor itself, for the last token only."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product

import libcst as cst

from conformance.commands.check.search.change import Change, Clues, change
from conformance.commands.check.search.program import ParsedFile, enclosed, joined

_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}

#: The ways to read logits and tokens on either side.
_READ = re.compile(
    r"(.+?)\.(?:(?:lm_head|embed_out)\.output|output\.logits|logits(?:\.output)?"
    r"|(samples)(?:\.output)?)",
    re.DOTALL,
)

#: The names of embedding modules.
EMBEDDINGS = "embed_tokens|wte|embed_in|word_embeddings"


def read_logits(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Read `model.logits` or a part of it in the place of the head's output."""
    words = "`model.logits` is the value itself: the last token's, [1, vocabulary]"
    for node in program.expressions((cst.Attribute, cst.Subscript)):
        parent = program.parents.get(node)
        if isinstance(parent, cst.Subscript) or (
            isinstance(parent, cst.Attribute) and not isinstance(node, cst.Subscript)
        ):
            continue
        core, indexes = program.indexed(node)
        if found := _READ.fullmatch(core):
            value = f"{found[1]}.{found[2] or 'logits'}"
            tails = [(), ("0",), ("-1",), indexes[1:], indexes, ("0", *indexes[1:])]
            for cost, tail in enumerate(dict.fromkeys(tails), 1):
                yield change(cost, words, program.swap(node, joined(value, tail)))


def multiply_by_head(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Multiply by the head's weights in the place of a call of the head, or of another matrix."""
    words = "vLLM's head cannot be called: multiply by its weights"
    for node, holes in program.matches("X.lm_head(A)", "X.embed_out(A)"):
        used = isinstance(program.parents.get(node), (cst.Attribute, cst.Subscript))
        value = enclosed(holes["A"], program.code(holes["A"]))
        for cost, weight in enumerate(_weights(program.code(holes["X"]), clues), 1):
            text = f"{value} @ {weight}.T"
            yield change(cost, words, program.swap(node, f"({text})" if used else text))
    for name in EMBEDDINGS.split("|"):
        for node, _ in program.matches(f"X.{name}.weight"):
            yield change(3, words, program.swap(node, f"model.{clues.head}.weight"))
    for node, holes in program.matches(f"X.{clues.head}.weight"):
        for weight in _weights(program.code(holes["X"]), clues)[1:]:
            yield change(3, "the model has no head of its own", program.swap(node, weight))


def _weights(model: str, clues: Clues) -> list[str]:
    """Return the candidates for the logits' matrix: the head's, and the embeddings'."""
    embedding = [f"{model}.{clues.embedding}.weight"] if clues.embedding else []
    return [f"{model}.{clues.head}.weight", *embedding]


def compute_logits(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Compute the logits of all tokens, before any cap; vLLM's are the last token's, capped."""
    words = "vLLM's logits are the last token's, after any cap: multiply what the final norm gives"
    for node, holes in program.matches("X.logits"):
        model = program.code(holes["X"])
        whole = program.parents[node]
        indexed = isinstance(whole, cst.Subscript) and whole.value is node
        last, end = (whole, "[-1]") if indexed else (node, "[-1:]")
        for norm, weight in product(clues.norms, _weights(model, clues)):
            for value in (f"{model}.{norm}.output[0]", f"{model}.{norm}.output"):
                text = f"({value} @ {weight}.T)"
                yield change(4, words, program.swap(node, text))
                yield change(4 if indexed else 5, words, program.swap(last, f"{text}{end}"))


def split_joined_projections(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Take the columns of vLLM's joined projection in the place of a projection's output."""
    words = "vLLM joins these projections in one"
    for access in program.accesses:
        value = joined_projection(access.core, clues.widths)
        for index in (access.indexes, access.indexes[1:]) if value else ():
            yield change(1, words, program.swap(access.node, joined(value, index)))


def take_other_columns(program: ParsedFile, clues: Clues) -> Iterator[Change]:
    """Take the columns of another projection that vLLM joins."""
    words = "other columns of the projections that vLLM joins"
    joints = [parts for joint, parts in _JOINED.items() if f".{joint}." in program.text]
    ranges = [_columns(name, parts, clues.widths) for parts in joints for name in parts]
    for node in program.expressions(cst.Subscript):
        columns = node.slice[-1].slice
        if len(node.slice) > 1 and isinstance(columns, cst.Slice):
            for other in filter(None, ranges):
                yield change(6, words, program.swap(columns, other))


def joined_projection(core: str, widths: Mapping[str, int]) -> str:
    """Return the text of the columns of vLLM's joined projection that hold a projection's output,
    "" for other values. vLLM joins query, key and value, and gate and up.
    """
    base, role = core.rpartition(".")[::2]
    layer, name = base.rpartition(".")[::2]
    for joint, parts in _JOINED.items():
        if name in parts and role == "output" and (columns := _columns(name, parts, widths)):
            return f"{layer}.{joint}.output[0][:, {columns}]"
    return ""


def _columns(name: str, parts: Sequence[str], widths: Mapping[str, int]) -> str:
    """Return the columns of a projection in the joined one, "" if its width is unknown."""
    first = sum(widths.get(one, 0) for one in parts[: parts.index(name)])
    return f"{first}:{first + widths[name]}" if widths.get(name) else ""
