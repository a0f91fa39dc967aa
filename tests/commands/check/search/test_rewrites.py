"""What each rewrite makes of a mistake: the right version is among its candidates, and early."""

from __future__ import annotations

import ast
from typing import Any

import pytest

from conformance.commands.check.search.candidates import _candidate, changes, propose
from conformance.commands.check.search.change import Clues
from conformance.commands.check.search.program import ParsedFile
from conformance.commands.check.values.known_values import ValuePlace

HF = """\
import torch.nn.functional as F

PROMPT, STEPS = "The capital of France is", 3


def hf(model):
    with model.trace(PROMPT):
        hidden = model.model.layers[2].output[:, -1].save()
    return {"hidden": hidden}


"""


def port(*lines: str, opening: str = "model.trace(PROMPT, temperature=0.0, max_tokens=1)") -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f'{HF}def vllm(model):\n    with {opening}:\n{body}\n    return {{"hidden": hidden}}\n'


def value(rewrite: str, before: str, after: str, *above: str, **clues: Any) -> tuple[Any, ...]:
    """A value that is saved before and after a rewrite, below the same lines."""
    return (
        rewrite,
        [*above, f"hidden = {before}.save()"],
        [*above, f"hidden = {after}.save()"],
        Clues(**clues),
    )


def lines(rewrite: str, before: str, after: str, *above: str, **clues: Any) -> tuple[Any, ...]:
    """Lines before and after a rewrite, below the same lines."""
    texts = ([*above, *text.split("\n")] for text in (before, after))
    return (rewrite, *texts, Clues(**clues))


LAYER, EMBEDDING = "model.model.layers[2]", "model.model.embed_tokens"
NORM = "layers[at].norm.output"
PARTS = ("self_attn", "self_attn.o_proj", "mlp", "input_layernorm", "post_attention_layernorm")
WIDTHS = {"q_proj": 8, "k_proj": 4, "v_proj": 4}
ATTENTION = "model.model.layers[1].self_attn"
OUT = "model.model.layers[1].output"
BOTH = f"{LAYER}.output[0] + {LAYER}.output[1]"
GATE = f"{LAYER}.mlp.gate_up_proj.output[0].chunk(2, dim=-1)[0]"
SCALE = f"{EMBEDDING}.output.shape[-1] ** 0.5"


@pytest.mark.parametrize(
    ("rewrite", "before", "after", "clues"),
    [
        value("take_another_tensor", f"{LAYER}.output[0][-1]", f"({BOTH})[-1]", dual=True),
        lines(
            "put_back_sum",
            "ablate_(stream, direction)",
            f"ablate_(stream, direction)\n{LAYER}.output = (stream, stream * 0)",
            f"stream = {BOTH}",
            dual=True,
        ),
        lines(
            "take_another_tensor",
            f"hidden = {NORM}[0]",
            f"hidden = ({NORM}[0] if isinstance({NORM}, tuple) else {NORM})",
            dual=True,
        ),
        value("take_another_tensor", f"{ATTENTION}.output[0][:, -1]", f"{ATTENTION}.output[-1]"),
        lines(
            "fill_inside",
            f"track = torch.zeros(len(LAYERS))\ntrack[0] = {LAYER}.output[0][0, 0]",
            f"track = torch.zeros(len(LAYERS)).save()\ntrack[0] = {LAYER}.output[0][0, 0]",
        ),
        value(
            "take_engine_layers",
            "model.gpt_neox.layers[2].output[0]",
            f"{LAYER}.output[0]",
            layers="model.layers",
        ),
        value(
            "take_another_part",
            "model.model.layers[1].mlp.output[-1]",
            f"{LAYER}.self_attn.output[-1]",
            meant=(ValuePlace(2, "self_attn", "output"),),
            modules=PARTS,
        ),
        value("take_another_index", "model.layers[n + 1].mlp.output", "model.layers[n].mlp.output"),
        value("take_another_index", "f.view(4, 3, 8)[..., 0, :]", "f.view(4, 3, 8)[..., 1, :]"),
        value(
            "take_other_columns",
            "fused[:, q : q + w].clone()",
            "fused[:, 12:16].clone()",
            "fused = block.qkv_proj.output[0]",
            widths=WIDTHS,
        ),
        value("drop_batch_index", "h[:, -1]", "h[-1]", "h = read(model)"),
        value("shift_axis", "h.mean(dim=1)", "h.mean(dim=0)"),
        value("leave_axis", "h.squeeze(0)[-1]", "h[-1]"),
        value("read_logits", "model.lm_head.output[:, -1]", "model.logits"),
        value("multiply_by_head", "model.lm_head(h)", "(h @ model.lm_head.weight.T)"),
        value(
            "split_joined_projections",
            f"{ATTENTION}.k_proj.output[0]",
            f"{ATTENTION}.qkv_proj.output[0][:, 8:12]",
            widths=WIDTHS,
        ),
        lines(
            "write_both_tensors",
            f"{OUT}[0][-1] = donor",
            f"{OUT}[0][-1] = donor\n{OUT}[1][-1] = 0",
        ),
        lines(
            "write_both_tensors",
            f"{OUT}[0][:] *= 0.5",
            f"{OUT}[0][:] *= 0.5\n{OUT}[1][:] *= 0.5",
        ),
        lines("write_both_tensors", f"{OUT} = donor", f"{OUT} = (donor, donor * 0)"),
        lines(
            "change_no_copy",
            "h = layer.output.clone()\nh[-1] = donor",
            "h = layer.output\nh[-1] = donor",
        ),
        lines("write_into_tensor", "a = a - v", "a[:] = a - v", "a, b = layer.output"),
        value("copy_kept", "layer.output[0]", "layer.output[0].clone()"),
        lines(
            "save_used",
            "hidden = layer.output[0].clone()",
            "hidden = layer.output[0].clone().save()",
        ),
        value(
            "compute_logits",
            "model.logits",
            "(model.model.norm.output[0] @ model.lm_head.weight.T)",
            norms=("model.norm",),
        ),
        lines(
            "swap_statements",
            "h = h * 0\nhidden = h.save()",
            "hidden = h.save()\nh = h * 0",
        ),
        value(
            "take_another_tensor",
            f"{LAYER}.input[-1]",
            f"sum({LAYER}.input_layernorm.inputs[0])[-1]",
            modules=("input_layernorm", "mlp"),
        ),
        value(
            "compute_activation",
            "mlp.act_fn.output[0]",
            f"F.silu({GATE})",
            f"mlp = {LAYER}.mlp",
            widths={"gate_proj": 8, "up_proj": 8},
        ),
        value(
            "scale_embedding",
            f"{EMBEDDING}.output[-1]",
            f"({EMBEDDING}.output[-1] * {SCALE})",
            embedding="model.embed_tokens",
        ),
        lines(
            "scale_embedding",
            f"{EMBEDDING}.output[0] += v",
            f"{EMBEDDING}.output[0] += (v) / {SCALE}",
            embedding="model.embed_tokens",
        ),
    ],
)
def test_the_right_version_is_among_what_a_rewrite_proposes(rewrite, before, after, clues):
    found = {one.text for one in proposed(port(*before), clues) if one.rewrite == rewrite}
    assert port(*after) in found


def proposed(text, clues):
    """All candidates, each under every rewrite that makes it."""
    program = ParsedFile(text, "vllm")
    for name, change in changes(program, clues):
        candidate = _candidate(program, name, change, clues)
        if candidate is not None:
            yield candidate


def test_the_method_of_an_outer_object_is_called_after_the_block():
    texts = [one.text for one in proposed(port("mean.update(lm.layers[2].stream)"), Clues())]
    below = "passed = lm.layers[2].stream.save()\n    mean.update(passed)\n"
    assert any(below in text for text in texts)


def test_a_request_is_greedy_and_as_long_as_on_transformers():
    text = port("hidden = model.logits.save()", opening="model.trace(PROMPT, max_new_tokens=8)")
    text = text.replace("model.trace(PROMPT):", "model.generate(PROMPT, max_new_tokens=STEPS):")
    texts = {one.text for one in propose(text, "vllm", Clues())}
    opening = "model.trace(PROMPT, temperature=0.0, max_tokens=8)"
    assert text.replace("model.trace(PROMPT, max_new_tokens=8)", opening) in texts


def test_what_invokes_append_to_one_list_gets_a_key_for_each_prompt():
    text = (
        "def trace(lm):\n"
        "    with lm.trace() as tracer:\n"
        "        rows = []\n"
        "        rows = rows.save()\n"
        "        for prompt in PROMPTS:\n"
        "            with tracer.invoke(prompt):\n"
        "                rows.append(lm.logits)\n"
        '    return {"rows": rows}\n'
    )
    meant = (
        text.replace("rows = []", "rows = {}")
        .replace("rows.append(lm.logits)", "rows[prompt] = lm.logits")
        .replace("    return", "    rows = [rows[prompt] for prompt in PROMPTS]\n    return")
    )
    assert meant in {one.text for one in propose(text, "trace", Clues())}


def test_a_container_is_made_in_the_block_that_fills_it():
    text = HF + (
        "def vllm(model):\n"
        "    hidden = []\n"
        "    with model.trace(PROMPT, temperature=0.0, max_tokens=1):\n"
        "        for layer in model.model.layers:\n"
        "            hidden.append(layer.output[0])\n"
        '    return {"hidden": hidden}\n'
    )
    meant = text.replace("    hidden = []\n    with", "    with").replace(
        "max_tokens=1):\n", "max_tokens=1):\n        hidden = [].save()\n"
    )
    assert meant in {one.text for one in propose(text, "vllm", Clues())}


def test_candidates_are_python_other_texts_and_leave_hf_alone():
    text = port("hidden = model.model.layers[2].output[0][:, -1].mean(dim=1).save()")
    for one in propose(text, "vllm", Clues(dual=True, modules=PARTS)):
        tree = ast.parse(one.text)
        hf = next(node for node in tree.body if getattr(node, "name", "") == "hf")
        assert one.text != text
        assert ast.get_source_segment(one.text, hf) == HF[HF.index("def hf") :].strip()


def test_a_line_that_failed_is_rewritten_before_others():
    text = port("other = model.model.layers[1].output[0]", "hidden = model.lm_head.output.save()")
    line = text.splitlines().index("        hidden = model.lm_head.output.save()") + 1
    for one in propose(text, "vllm", Clues(lines=(line,), modules=PARTS))[:5]:
        assert line in one.lines


@pytest.mark.parametrize(
    ("filled", "inside", "made", "behind"),
    [
        ("means[n] = means[n] + value", "here[n] = means[n] + value", "{}", "means.update(here)"),
        ("rows.append(value)", "here.append(value)", "[]", "rows.extend(here)"),
    ],
)
def test_a_container_that_outlives_its_block_is_filled_behind_it(filled, inside, made, behind):
    text = port("for n in LAYERS:", f"    {filled}")
    block = port(f"here = {made}.save()", "for n in LAYERS:", f"    {inside}")
    before, end, after = block.rpartition("    return")
    meant = f"{before}    {behind}\n{end}{after}"
    assert meant in {one.text for one in proposed(text, Clues()) if one.rewrite == "fill_inside"}


@pytest.mark.parametrize(
    ("imports", "added", "silu"),
    [
        ("import torch\n\n\n", "", "torch.nn.functional.silu"),
        ("", "import torch\n\n", "torch.nn.functional.silu"),
        ("import torch.nn as nn\n\n\n", "import torch\n\n", "torch.nn.functional.silu"),
        ("from torch.nn import functional as fn\n\n\n", "", "fn.silu"),
    ],
)
def test_an_activation_is_computed_with_a_function_that_the_file_imports(imports, added, silu):
    before = "def vllm(model):\n    return {'a': mlp.act_fn.output}\n"
    gate = "mlp.gate_up_proj.output[0].chunk(2, dim=-1)[0]"
    after = before.replace("mlp.act_fn.output", f"{silu}({gate})")
    found = {one.text for one in propose(imports + before, "vllm", Clues(widths={"gate_proj": 8}))}
    assert added + imports + after in found
    assert not [one for one in propose(imports + before, "vllm", Clues()) if "silu" in one.text]
