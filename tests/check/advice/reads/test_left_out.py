"""A part of the model that one side alone computes a value with: named, and the line mended."""

import pytest

from conformance.check.advice.reads.left_out_parts import left_out
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places

FILE = """\
from torch.nn.functional import linear


def hf(model):
    with model.trace("a"):
        hidden = model.model.layers[1].output[:, -1]
        {theirs}
        logits = model.lm_head.output[:, -1].save()
    return {{"lens": lens, "logits": logits}}


def vllm(model):
    norm, weight = model.model.norm, model.lm_head.weight
    head = model.lm_head
    with model.trace("a", temperature=0.0, max_tokens=1):
        hidden = (model.model.layers[1].output[0] + model.model.layers[1].output[1])[-1:]
        {ours}
        logits = model.logits.clone().save()
    return {{"lens": lens, "logits": logits}}
"""

WITH = "lens = model.lm_head(model.model.norm(hidden)).save()"
WITHOUT = "lens = model.lm_head(hidden).save()"
APART = "normed = model.model.norm(hidden)\n        lens = model.lm_head(normed)[:, -1].save()"

#: `hf`, `vllm` without the norm, and its line mended.
MENDED = {
    "a product": (
        WITH,
        "lens = (hidden @ model.lm_head.weight.T).save()",
        "lens = (model.model.norm(hidden) @ model.lm_head.weight.T).save()",
    ),
    "statements of their own": (
        APART,
        "lens = (hidden @ model.lm_head.weight.T).save()",
        "lens = (model.model.norm(hidden) @ model.lm_head.weight.T).save()",
    ),
    "a function of torch": (
        WITH.replace(".save()", ".argmax(-1).save()"),
        "lens = linear(hidden, head.weight).argmax(-1).save()",
        "lens = linear(model.model.norm(hidden), head.weight).argmax(-1).save()",
    ),
}

#: Files of which both sides go through the same parts.
ALIKE = {
    "a norm that is called": (WITH, "lens = (model.model.norm(hidden) @ head.weight.T).save()"),
    "a norm that is bound first": (
        WITH,
        "own = model.model.norm\n        lens = (own(hidden) @ head.weight.T).save()",
    ),
    "neither": (WITHOUT, "lens = (hidden @ model.lm_head.weight.T).save()"),
    "a norm by its weight": (
        WITH,
        "scaled = hidden * model.model.norm.weight\n        lens = (scaled @ head.weight.T).save()",
    ),
}


def places(folder, theirs, ours):
    path = folder / "lens.py"
    path.write_text(FILE.format(theirs=theirs, ours=ours))
    return Places(source.read(path), "vllm")


@pytest.mark.parametrize("name", MENDED)
def test_a_part_that_vllm_leaves_out_is_put_back(tmp_path, name):
    theirs, ours, mended = MENDED[name]
    made = places(tmp_path, theirs, ours)
    told = left_out(made, "lens")
    assert "`hf` computes it with `model.model.norm`" in told.words
    assert made.file.line(told.edit.line).strip() == ours
    assert told.edit.after.strip() == mended
    assert left_out(made, "logits") is None


@pytest.mark.parametrize("name", ALIKE)
def test_the_same_parts_on_both_sides_are_none_left_out(tmp_path, name):
    assert left_out(places(tmp_path, *ALIKE[name]), "lens") is None


def test_a_part_that_vllm_alone_goes_through_is_taken_out(tmp_path):
    told = left_out(places(tmp_path, WITHOUT, ALIKE["a norm that is called"][1]), "lens")
    assert "`vllm` computes it with `model.model.norm`, and `hf` does not" in told.words
    assert told.edit.after.strip() == "lens = (hidden @ head.weight.T).save()"


def test_what_holds_on_both_engines_has_no_other_side(tmp_path):
    path = tmp_path / "trace.py"
    path.write_text(
        'def trace(lm):\n    with lm.trace("a"):\n        x = lm.lens(lm.layers[0].stream).save()\n'
        '    return {"x": x}\n'
    )
    assert left_out(Places(source.read(path), "trace"), "x") is None


LINE = "\n        "

#: `hf`, `vllm` with the weights of another part, and its line mended.
OTHER = {
    "a weight under a name": (
        WITH,
        f"W = model.model.embed_tokens.weight{LINE}lens = (model.model.norm(hidden) @ W.T).save()",
        "W = model.lm_head.weight",
    ),
    "a weight in the line": (
        "lens = (model.model.norm(hidden) @ model.lm_head.weight.T).save()",
        "lens = linear(model.model.norm(hidden), model.model.embed_tokens.weight).save()",
        "lens = linear(model.model.norm(hidden), model.lm_head.weight).save()",
    ),
    "a module under a name": (
        WITH,
        f"W = model.model.embed_tokens{LINE}lens = (model.model.norm(hidden) @ W.weight.T).save()",
        "W = model.lm_head",
    ),
    "a norm that is called": (
        WITH,
        "lens = (model.model.layers[1].input_layernorm(hidden) @ head.weight.T).save()",
        "lens = (model.model.norm(hidden) @ head.weight.T).save()",
    ),
}


@pytest.mark.parametrize("name", OTHER)
def test_another_part_s_weights_are_the_cause_and_nothing_is_added(tmp_path, name):
    theirs, ours, mended = OTHER[name]
    made = places(tmp_path, theirs, ours)
    told = left_out(made, "lens")
    assert (
        told.words.startswith("`hf` computes it with `model.") and " and `vllm` with " in told.words
    )
    assert told.edit.after.strip() == mended


def test_another_part_and_a_norm_left_out_are_told_one_after_the_other(tmp_path):
    ours = "lens = (hidden @ model.model.embed_tokens.weight.T).save()"
    told = left_out(places(tmp_path, WITH, ours), "lens")
    assert told.edit.after.strip() == "lens = (hidden @ model.lm_head.weight.T).save()"


def test_what_vllm_does_not_call_is_not_put_into_a_call(tmp_path):
    told = left_out(
        places(tmp_path, WITH, "lens = model.model.embed(model.model.norm(hidden))"), "lens"
    )
    assert "and `vllm` with `model.model.embed`" in told.words
    assert told.edit.after == ""


@pytest.mark.parametrize("model", ["model.logits", "model.logits.float()"])
def test_the_last_token_s_logits_among_every_token_s_are_named(tmp_path, model):
    ours = f"final = {model}{LINE}lens = (model.model.norm(hidden) @ head.weight.T - final).save()"
    made = places(tmp_path, WITH, ours)
    told = left_out(made, "lens")
    assert "`vllm` computes it with `model.logits`, which is the last token's alone" in told.words
    assert (made.file.line(told.edit.line).strip(), told.edit.after) == (f"final = {model}", "")
    theirs = f"{WITH}{LINE}lens = lens - model.lm_head.output[:, -1]"
    assert left_out(places(tmp_path, theirs, ours), "lens") is None
