"""Logits and the head: on vLLM `model.logits` is the value itself, of the last token alone."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import product

import libcst as cst

from conformance.check.search.change import Change, Clues
from conformance.check.search.program import Program, joined

_JOINED = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
_HEADS = ("lm_head", "embed_out")

#: What a module of embeddings is called.
EMBEDDINGS = "embed_tokens|wte|embed_in|word_embeddings"


def read_logits(program: Program, clues: Clues) -> Iterator[Change]:
    """Read `model.logits` where the head's output is read, or a part of it."""
    words = "`model.logits` is the value itself: the last token's, [1, vocabulary]"
    for node in program.expressions((cst.Attribute, cst.Subscript)):
        if isinstance(program.parents.get(node), (cst.Subscript, cst.Attribute)) and not (
            isinstance(node, cst.Subscript)
        ):
            continue
        core: cst.BaseExpression = node
        indexes: list[str] = []
        while isinstance(core, cst.Subscript):
            indexes.insert(0, ", ".join(program.code(one.slice).strip() for one in core.slice))
            core = core.value
        if isinstance(program.parents.get(node), cst.Subscript):
            continue
        found = _model_of_logits(program.code(core))
        if not found:
            continue
        model, name = found
        here = program.code(node)
        tails = [(), ("0",), ("-1",), tuple(indexes[1:]), tuple(indexes), ("0", *indexes[1:])]
        for cost, tail in enumerate(dict.fromkeys(tails)):
            text = joined(f"{model}.{name}", tail)
            if text != here:
                yield Change((program.swap(node, text),), words, 1 + cost)


def _model_of_logits(text: str) -> tuple[str, str] | None:
    for ending, name in (
        *((f".{head}.output", "logits") for head in _HEADS),
        (".output.logits", "logits"),
        (".logits.output", "logits"),
        (".samples.output", "samples"),
        (".logits", "logits"),
        (".samples", "samples"),
    ):
        if text.endswith(ending):
            return text.removesuffix(ending), name
    return None


def multiply_by_head(program: Program, clues: Clues) -> Iterator[Change]:
    """Multiply by the head's weights where the head is called, or another matrix is taken."""
    words = "vLLM's head cannot be called: multiply by its weights"
    for node in program.expressions(cst.Call):
        func = program.code(node.func)
        if func.rpartition(".")[2] not in _HEADS or len(node.args) != 1:
            continue
        used = isinstance(program.parents.get(node), (cst.Attribute, cst.Subscript))
        value = program.code(node.args[0].value)
        weights = [f"{func}.weight", *_weights(func.rpartition(".")[0], clues)[1:]]
        for cost, (weight, factor) in enumerate(product(weights, (value, f"({value})"))):
            text = f"{factor} @ {weight}.T"
            change = (program.swap(node, f"({text})" if used else text),)
            yield Change(change, words, 1 + cost)
    for node in program.expressions(cst.Attribute):
        if not re.fullmatch(EMBEDDINGS, node.attr.value):
            continue
        parent = program.parents.get(node)
        if isinstance(parent, cst.Attribute) and parent.attr.value == "weight":
            yield Change((program.swap(node, f"model.{clues.head}"),), "the head's weights", 3)


def _weights(model: str, clues: Clues) -> list[str]:
    """The matrices that logits are computed with: the head's, or where it has none the
    embeddings'.
    """
    embedding = [f"{model}.{clues.embedding}.weight"] if clues.embedding else []
    return [f"{model}.{clues.head}.weight", *embedding]


def compute_logits(program: Program, clues: Clues) -> Iterator[Change]:
    """Compute the logits: vLLM's own are the last token's alone, and capped where a model caps."""
    words = "vLLM's logits are the last token's, after any cap: multiply what the final norm gives"
    for node in program.expressions(cst.Attribute):
        if node.attr.value != "logits" or not isinstance(node.value, cst.Name):
            continue
        model, whole = node.value.value, program.parents.get(node)
        for norm, weight in product(clues.norms, _weights(model, clues)):
            for value in (f"{model}.{norm}.output[0]", f"{model}.{norm}.output"):
                text = f"({value} @ {weight}.T)"
                yield Change((program.swap(node, text),), words, 4)
                if isinstance(whole, cst.Subscript) and whole.value is node:
                    yield Change((program.swap(whole, f"{text}[-1]"),), words, 4)
                else:
                    yield Change((program.swap(node, f"{text}[-1:]"),), words, 5)


def split_joined_projections(program: Program, clues: Clues) -> Iterator[Change]:
    """Take the columns of vLLM's joined projections."""
    for access in program.accesses:
        value = joined_projection(access.core, clues.widths)
        words = "vLLM joins these projections in one"
        for index in (access.indexes, access.indexes[1:]) if value else ():
            yield Change((program.swap(access.node, joined(value, index)),), words, 1)


def joined_projection(core: str, widths: Mapping[str, int]) -> str:
    """Return the columns of vLLM's joined projection that a projection's output is, "" for another
    value: query, key and value lie side by side, and so do gate and up.
    """
    base, role = core.rpartition(".")[::2]
    layer, name = base.rpartition(".")[::2]
    for joint, parts in _JOINED.items():
        if name in parts and role == "output" and widths.get(name):
            first = sum(widths.get(one, 0) for one in parts[: parts.index(name)])
            return f"{layer}.{joint}.output[0][:, {first}:{first + widths[name]}]"
    return ""
