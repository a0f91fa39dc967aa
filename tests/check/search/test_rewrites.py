"""What each rewrite makes of a mistake: the right version is among its candidates, and early."""

from __future__ import annotations

import ast

import pytest

from conformance.check.search.candidates import propose
from conformance.check.search.change import Clues
from conformance.check.values.known_values import ValuePlace

HF = """\
import torch.nn.functional as F

PROMPT, STEPS = "The capital of France is", 3


def hf(model):
    with model.trace(PROMPT):
        hidden = model.model.layers[2].output[:, -1].save()
    return {"hidden": hidden}


"""

LAYER, EMBEDDING = "model.model.layers[2]", "model.model.embed_tokens"
NORM = "layers[at].norm.output"

PARTS = ("self_attn", "self_attn.o_proj", "mlp", "input_layernorm", "post_attention_layernorm")


def port(*lines: str, opening: str = "model.trace(PROMPT, temperature=0.0, max_tokens=1)") -> str:
    body = "\n".join(f"        {line}" for line in lines)
    return f'{HF}def vllm(model):\n    with {opening}:\n{body}\n    return {{"hidden": hidden}}\n'


@pytest.mark.parametrize(
    ("rewrite", "before", "after", "clues"),
    [
        (
            "take_another_tensor",
            ["hidden = model.model.layers[2].output[0][-1].clone().save()"],
            [f"hidden = ({LAYER}.output[0] + {LAYER}.output[1])[-1].clone().save()"],
            Clues(dual=True),
        ),
        (
            "put_back_sum",
            [
                f"stream = {LAYER}.output[0] + {LAYER}.output[1]",
                "ablate_(stream, direction)",
                "hidden = stream.save()",
            ],
            [
                f"stream = {LAYER}.output[0] + {LAYER}.output[1]",
                "ablate_(stream, direction)",
                f"{LAYER}.output = (stream, stream * 0)",
                "hidden = stream.save()",
            ],
            Clues(dual=True),
        ),
        (
            "take_another_tensor",
            [f"hidden = {NORM}[0]"],
            [f"hidden = ({NORM}[0] if isinstance({NORM}, tuple) else {NORM})"],
            Clues(dual=True),
        ),
        (
            "take_another_tensor",
            ["hidden = model.model.layers[2].self_attn.output[0][:, -1].save()"],
            ["hidden = model.model.layers[2].self_attn.output[-1].save()"],
            Clues(),
        ),
        (
            "fill_inside",
            [
                "track = torch.zeros(len(LAYERS))",
                "track[0] = model.model.layers[2].output[0][0, 0]",
            ],
            [
                "track = torch.zeros(len(LAYERS)).save()",
                "track[0] = model.model.layers[2].output[0][0, 0]",
            ],
            Clues(),
        ),
        (
            "take_engine_layers",
            ["hidden = model.gpt_neox.layers[2].output[0].save()"],
            ["hidden = model.model.layers[2].output[0].save()"],
            Clues(layers="model.layers"),
        ),
        (
            "take_another_part",
            ["hidden = model.model.layers[1].mlp.output[-1].save()"],
            ["hidden = model.model.layers[2].self_attn.output[-1].save()"],
            Clues(meant=(ValuePlace(2, "self_attn", "output"),), modules=PARTS),
        ),
        (
            "take_another_index",
            ["hidden = model.model.layers[n + 1].mlp.output.save()"],
            ["hidden = model.model.layers[n].mlp.output.save()"],
            Clues(),
        ),
        (
            "take_another_index",
            ["hidden = fused.view(4, 3, 8)[..., 0, :].save()"],
            ["hidden = fused.view(4, 3, 8)[..., 1, :].save()"],
            Clues(),
        ),
        (
            "take_other_columns",
            ["fused = block.qkv_proj.output[0]", "hidden = fused[:, q : q + w].clone().save()"],
            ["fused = block.qkv_proj.output[0]", "hidden = fused[:, 12:16].clone().save()"],
            Clues(widths={"q_proj": 8, "k_proj": 4, "v_proj": 4}),
        ),
        (
            "drop_batch_index",
            ["h = read(model)", "hidden = h[:, -1].save()"],
            ["h = read(model)", "hidden = h[-1].save()"],
            Clues(),
        ),
        (
            "shift_axis",
            ["hidden = h.mean(dim=1).save()"],
            ["hidden = h.mean(dim=0).save()"],
            Clues(),
        ),
        (
            "leave_axis",
            ["hidden = h.squeeze(0)[-1].save()"],
            ["hidden = h[-1].save()"],
            Clues(),
        ),
        (
            "read_logits",
            ["hidden = model.lm_head.output[:, -1].save()"],
            ["hidden = model.logits.save()"],
            Clues(),
        ),
        (
            "multiply_by_head",
            ["hidden = model.lm_head(h).save()"],
            ["hidden = (h @ model.lm_head.weight.T).save()"],
            Clues(),
        ),
        (
            "split_joined_projections",
            ["hidden = model.model.layers[1].self_attn.k_proj.output[0].save()"],
            ["hidden = model.model.layers[1].self_attn.qkv_proj.output[0][:, 64:96].save()"],
            Clues(widths={"q_proj": 64, "k_proj": 32, "v_proj": 32}),
        ),
        (
            "write_both_tensors",
            ["model.model.layers[1].output[0][-1] = donor"],
            [
                "model.model.layers[1].output[0][-1] = donor",
                "model.model.layers[1].output[1][-1] = 0",
            ],
            Clues(),
        ),
        (
            "write_both_tensors",
            ["model.model.layers[1].output[0][:] *= 0.5"],
            [
                "model.model.layers[1].output[0][:] *= 0.5",
                "model.model.layers[1].output[1][:] *= 0.5",
            ],
            Clues(),
        ),
        (
            "write_both_tensors",
            ["model.model.layers[1].output = donor"],
            ["model.model.layers[1].output = (donor, donor * 0)"],
            Clues(),
        ),
        (
            "change_no_copy",
            ["h = layer.output.clone()", "h[-1] = donor"],
            ["h = layer.output", "h[-1] = donor"],
            Clues(),
        ),
        (
            "write_into_tensor",
            ["a, b = layer.output", "a = a - v"],
            ["a, b = layer.output", "a[:] = a - v"],
            Clues(),
        ),
        (
            "copy_kept",
            ["hidden = layer.output[0].save()"],
            ["hidden = layer.output[0].clone().save()"],
            Clues(),
        ),
        (
            "save_used",
            ["hidden = layer.output[0].clone()"],
            ["hidden = layer.output[0].clone().save()"],
            Clues(),
        ),
        (
            "compute_logits",
            ["hidden = model.logits.save()"],
            ["hidden = (model.model.norm.output[0] @ model.lm_head.weight.T).save()"],
            Clues(norms=("model.norm",)),
        ),
        (
            "swap_statements",
            ["h = h * 0", "hidden = h.save()"],
            ["hidden = h.save()", "h = h * 0"],
            Clues(),
        ),
        (
            "take_another_tensor",
            ["hidden = model.model.layers[2].input[-1].save()"],
            ["hidden = sum(model.model.layers[2].input_layernorm.inputs[0])[-1].save()"],
            Clues(modules=("input_layernorm", "mlp")),
        ),
        (
            "compute_activation",
            [f"mlp = {LAYER}.mlp", "hidden = mlp.act_fn.output[0].save()"],
            [
                f"mlp = {LAYER}.mlp",
                f"hidden = F.silu({LAYER}.mlp.gate_up_proj.output[0].chunk(2, dim=-1)[0]).save()",
            ],
            Clues(widths={"gate_proj": 8, "up_proj": 8}),
        ),
        (
            "scale_embedding",
            [f"hidden = {EMBEDDING}.output[-1].save()"],
            [
                f"hidden = ({EMBEDDING}.output[-1] * {EMBEDDING}.output.shape[-1] ** 0.5).save()",
            ],
            Clues(embedding="model.embed_tokens"),
        ),
        (
            "scale_embedding",
            [f"{EMBEDDING}.output[0] += v"],
            [
                f"{EMBEDDING}.output[0] += (v) / {EMBEDDING}.output.shape[-1] ** 0.5",
            ],
            Clues(embedding="model.embed_tokens"),
        ),
    ],
)
def test_the_right_version_is_among_what_a_rewrite_proposes(rewrite, before, after, clues):
    found = {one.text for one in proposed(port(*before), clues) if one.rewrite == rewrite}
    assert port(*after) in found


def proposed(text, clues):
    """All candidates, each under every rewrite that makes it."""
    from conformance.check.search.candidates import _candidate, changes
    from conformance.check.search.program import ParsedFile

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
