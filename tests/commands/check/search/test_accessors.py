"""Accessors of `lm` in the place of values in nnsight's own tree."""

from __future__ import annotations

import pytest

from conformance.commands.check.search.candidates import propose
from conformance.commands.check.search.change import Clues


def file(lines: str) -> str:
    body = "".join(f"        {line}\n" for line in lines.splitlines())
    return f"def trace(lm):\n    with lm.trace(PROMPT):\n{body}    return a\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("a = lm.model.model.layers[n].output[0][-1]", "a = lm.layers[n].stream[-1]"),
        ("a = lm.model.model.layers[n].output[:, -1]", "a = lm.layers[n].stream[None][:, -1]"),
        ("a = lm.model.transformer.h[2].attn.output[0]", "a = lm.layers[2].attention.output[None]"),
        ("a = lm.model.model.layers[2].mlp.output[0]", "a = lm.layers[2].mlp.output"),
        ("a = lm.model.model.layers[2].input[0, 1:]", "a = lm.layers[2].input[1:]"),
        ("a = lm.model.model.embed_tokens.output[0]", "a = lm.embedding.output"),
        ("a = lm.model.model.norm.output[0]", "a = lm.norm.output"),
        ("a = lm.model.lm_head.output[:, -1]", "a = lm.logits[None]"),
        ("a = lm.model.lm_head.output[0, -1, ids]", "a = lm.logits[ids]"),
        ("a = lm.model.lm_head.output[0]", "a = lm.lens(lm.layers[-1].stream)"),
        (
            "b = lm.model.model.layers\na = b[n].output[0]",
            "b = lm.model.model.layers\na = lm.layers[n].stream",
        ),
        ("lm.model.model.layers[1].output[:] *= 2", "lm.layers[1].stream *= 2"),
        (
            "lm.model.model.layers[1].output[:, -1] = v",
            "rows = lm.layers[1].stream\nrows[-1] = v\nlm.layers[1].stream = rows",
        ),
        (
            "for n, b in enumerate(lm.model.model.layers):\n    a.append(b.output[0])",
            "for n, b in enumerate(lm.layers):\n    a.append(b.stream)",
        ),
    ],
)
def test_an_accessor_is_taken_for_a_value_of_nnsights_tree(before, after):
    clues = Clues(modules=("self_attn", "attn", "mlp"))
    found = propose(file(before), "trace", clues)
    assert file(after) in {one.text for one in found if one.rewrite == "take_accessor"}


def test_only_a_trace_of_the_adapter_has_accessors():
    text = file("a = lm.model.model.layers[1].output").replace("def trace", "def vllm")
    found = propose(text, "vllm", Clues())
    assert not [one for one in found if one.rewrite == "take_accessor"]
