"""What `hf` becomes on vLLM: the right port is among the versions that a search begins from."""

from __future__ import annotations

import pytest

from conformance.commands.check.search.change import Clues
from conformance.commands.check.search.program import ParsedFile
from conformance.commands.check.search.rewrites.porting import port_versions, without_old_habits

DUAL = Clues(
    dual=True,
    modules=("self_attn", "mlp", "self_attn.k_proj", "self_attn.o_proj", "input_layernorm"),
    widths={"q_proj": 8, "k_proj": 4, "v_proj": 4},
)
SINGLE = Clues(single=True, modules=("attn", "mlp"))
TOP = 'import torch\n\nPROMPT = "a b"\nPROMPTS = ["a b", "c"]\n\n\n'
SUM = "(layers[1].output[0] + layers[1].output[1])"
TRACE = "trace(PROMPT, temperature=0.0, max_tokens=1)"


def file(*lines: str, opening: str = "trace(PROMPT)", name: str = "hf") -> str:
    body = [f"def {name}(model):", f"    with model.{opening}:", *(f"        {x}" for x in lines)]
    return "\n".join([*body, "    return {}"]) + "\n"


@pytest.mark.parametrize(
    ("theirs", "ours", "clues"),
    [
        (
            "h = layers[1].output[:, -1]",
            f"h = {SUM}[-1:]",
            DUAL,
        ),
        (
            "h = layers[1].output[0, -1]",
            f"h = {SUM}[-1]",
            DUAL,
        ),
        ("h = layers[1].output[:, -1]", "h = layers[1].output[-1:]", SINGLE),
        ("a = layer.self_attn.output[0][:, -1]", "a = layer.self_attn.output[-1:]", DUAL),
        (
            "o = layer.self_attn.o_proj.output[:, -1]",
            "o = layer.self_attn.o_proj.output[0][-1:]",
            DUAL,
        ),
        (
            "k = layer.self_attn.k_proj.output[0]",
            "k = layer.self_attn.qkv_proj.output[0][:, 8:12]",
            DUAL,
        ),
        ("n = layer.input_layernorm.output[0]", "n = layer.input_layernorm.output[0]", DUAL),
        ("h = layers[1].input", "h = sum(layers[1].input_layernorm.inputs[0])", DUAL),
        ("layers[1].output[:, -1] += v", "layers[1].output[0][-1] += v", DUAL),
        (
            "layers[1].output[:, -1] = v",
            "layers[1].output[0][-1] = v\n        layers[1].output[1][-1] = 0",
            DUAL,
        ),
        (
            "layers[1].output[:] *= 2",
            "layers[1].output[0][:] *= 2\n        layers[1].output[1][:] *= 2",
            DUAL,
        ),
        ("layers[1].output = v", "layers[1].output = (v, v * 0)", DUAL),
        ("x = model.lm_head.output[:, -1].save()", "x = model.logits.save()", DUAL),
        ("x = model.lm_head.output[0, -1].save()", "x = model.logits[0].save()", DUAL),
        ("x = model.lm_head.output[0][-1].save()", "x = model.logits[0].save()", SINGLE),
    ],
)
def test_a_statement_is_ported(theirs: str, ours: str, clues: Clues) -> None:
    found = port_versions(ParsedFile(TOP + file(theirs), "hf"), clues)
    assert TOP + file(theirs) + "\n\n" + file(ours, opening=TRACE, name="vllm") == found[0]


def test_a_linear_module_may_return_a_pair_where_a_layer_returns_one_tensor() -> None:
    theirs = "k = h[2].attn.c_attn.output.chunk(3, dim=-1)[1]"
    ours = theirs.replace(".output.", ".output[0].")
    found = port_versions(ParsedFile(TOP + file(theirs), "hf"), SINGLE)
    assert any(file(ours, opening=TRACE, name="vllm") in one for one in found)


def test_a_norm_of_queries_gives_one_tensor() -> None:
    theirs, ours = "q = a.q_norm.output[0, :, 3]", "q = a.q_norm.output[:, 3]"
    found = port_versions(ParsedFile(TOP + file(theirs), "hf"), DUAL)
    assert any(file(ours, opening=TRACE, name="vllm") in one for one in found)


@pytest.mark.parametrize("change", ["out[:, -1] += v", "out[:, -1] = v", "out[:] = out / n"])
def test_a_stream_that_is_held_and_written_to_is_put_back(change: str) -> None:
    text = TOP + file("out = layers[1].output", change)
    back = "layers[1].output = (out, out * 0)"
    port = file(f"out = {SUM}", change.replace(":, ", ""), back, opening=TRACE, name="vllm")
    assert port in port_versions(ParsedFile(text, "hf"), DUAL)[0]


def test_a_port_may_give_values_the_batch_axis_that_they_have_on_transformers() -> None:
    lines = (
        "a = mlp.output.mean(dim=1)",
        "h = b.o_proj.input",
        "h[:, 2] = a",
        "mlp.output[0, 1] = a",
    )
    ours = [one.replace("put", "put[None]") for one in lines]
    found = port_versions(ParsedFile(TOP + file(*lines), "hf"), SINGLE)
    assert any(file(*ours, opening=TRACE, name="vllm") in one for one in found)


def test_a_function_that_reads_values_is_copied_for_vllm() -> None:
    helper = "def gather(layer):\n    return layer.output[:, -1]\n\n\n"
    text = TOP + helper + file("h = gather(layers[1])")
    port = port_versions(ParsedFile(text, "hf"), SINGLE)[0]
    assert "def gather_vllm(layer):\n    return layer.output[-1:]\n" in port
    assert "h = gather_vllm(layers[1])" in port
    assert helper in port  # `hf` keeps its own


def test_prompts_of_a_batch_are_traced_one_by_one_and_a_mean_over_them_comes_after() -> None:
    text = TOP + file("h = block.output[:, -1].mean(dim=0).save()", opening="trace(PROMPTS)")
    port = port_versions(ParsedFile(text, "hf"), SINGLE)[0]
    assert "    for prompt in PROMPTS:\n        with model.trace(prompt, " in port
    assert "            h = block.output[-1:].save()\n        h_of.append(h)\n" in port
    assert "    h = torch.cat(h_of).mean(dim=0)\n" in port


def test_an_index_of_older_transformers_is_named_and_taken_as_it_was_meant() -> None:
    text = TOP + file("h = block.output[0][:, -1].save()", "a = block.attn.output[0][:, -1]")
    meant, words = without_old_habits(ParsedFile(text, "hf"), SINGLE)
    assert meant == text.replace("block.output[0][:", "block.output[:")
    assert "`block.output[0][:, -1]` is of older transformers" in words
    assert without_old_habits(ParsedFile(meant, "hf"), SINGLE) == (meant, "")


def test_a_trace_with_an_invoke_without_a_prompt_stays_whole() -> None:
    lines = [
        "with tracer.invoke(PROMPTS):",
        "    pass",
        "with tracer.invoke():",
        "    h = b.save()",
    ]
    text = TOP + file(*lines, opening="trace() as tracer")
    assert "for prompt in" not in port_versions(ParsedFile(text, "hf"), SINGLE)[0]
