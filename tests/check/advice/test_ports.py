"""A file with one side: the lines that are another thing on vLLM, and what they become."""

import pytest

from conformance.check.advice import porting
from conformance.check.parsing import source
from conformance.errors import ConformanceError, ExitCode


def file(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(f"def hf(model):\n{body}\n")
    return source.read(path)


def only(tmp_path, line):
    return porting.port(file(tmp_path, f"    {line}")).lines


@pytest.mark.parametrize(
    ("line", "there"),
    [
        (
            'with model.trace("x"):',
            'with model.trace("x", temperature=0.0, max_tokens=1):',
        ),
        (
            "with model.generate(text, max_new_tokens=3) as tracer:",
            "with model.trace(text, max_tokens=3, temperature=0.0) as tracer:",
        ),
        ("logits = model.lm_head.output[:, -1].save()", "logits = model.logits.save()"),
        (
            "h = model.model.layers[5].output[0].save()",
            "h = (model.model.layers[5].output[0] + model.model.layers[5].output[1]).save()",
        ),
        (
            "h = model.model.layers[5].output[:, -1].save()",
            "h = (model.model.layers[5].output[0] + model.model.layers[5].output[1])[-1].save()",
        ),
        ("logits = model.lm_head.output[0, -1].save()", "logits = model.logits[-1].save()"),
        (
            "with model.trace() as tracer:",
            "with model.trace(temperature=0.0, max_tokens=1) as tracer:",
        ),
        (
            "h = model.model.layers[5].output[:, -1, :].save()",
            "h = (model.model.layers[5].output[0] + model.model.layers[5].output[1])[-1].save()",
        ),
        (
            "a = model.model.layers[5].self_attn.output[0][:, 2].save()",
            "a = model.model.layers[5].self_attn.output[2].save()",
        ),
        ("n = model.model.norm.output.save()", "n = model.model.norm.output[0].save()"),
        (
            "m = model.model.layers[i].mlp.output[0].save()",
            "m = model.model.layers[i].mlp.output.save()",
        ),
        (
            "d = model.model.layers[5].mlp.down_proj.output[0, -1].save()",
            "d = model.model.layers[5].mlp.down_proj.output[0][-1].save()",
        ),
        (
            "x = model.model.layers[5].self_attn.o_proj.input[0, 2:].save()",
            "x = model.model.layers[5].self_attn.o_proj.input[2:].save()",
        ),
        ("model.model.layers[5].mlp.output[:, -1] = 0", "model.model.layers[5].mlp.output[-1] = 0"),
        ("model.model.layers[5].mlp.output[0] = 0", "model.model.layers[5].mlp.output[:] = 0"),
        ("model.model.layers[5].mlp.output[:, :] *= 2", "model.model.layers[5].mlp.output[:] *= 2"),
        ("model.model.layers[5].mlp.output[0][:] = 0", "model.model.layers[5].mlp.output[:] = 0"),
    ],
)
def test_a_line_becomes_its_other_side(tmp_path, line, there):
    body = line + "\n        pass" if line.endswith(":") else line
    [edit] = only(tmp_path, body)
    assert edit.after.strip() == there and edit.line == 2


@pytest.mark.parametrize(
    "line",
    [
        "gradient = hidden.grad.save()",
        "p = model.model.layers[1].self_attn.output[1].save()",
        "q = model.model.layers[1].self_attn.q_proj.output.save()",
        "a = model.model.layers[1].mlp.act_fn.output.save()",
        "logits = model.lm_head.output.save()",
        "tokens = tracer.result.save()",
        "x = model.model.layers[1].input.save()",
        "s = model.model.layers[1].self_attn.source.x.output.save()",
    ],
)
def test_what_has_no_other_side_gets_no_suggestion(tmp_path, line):
    found = porting.port(file(tmp_path, f"    {line}"))
    assert [edit.after for edit in found.lines] == [""]
    assert found.suggestion == ""


LAYER = "model.model.layers[1].output"


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("output[:] = 0", [f"{LAYER}[0][:] = 0", f"{LAYER}[1][:] = 0"]),
        ("output[0, -1] = donor", [f"{LAYER}[0][-1] = donor", f"{LAYER}[1][-1] = 0"]),
        ("output[:, 3] *= 2", [f"{LAYER}[0][3] *= 2", f"{LAYER}[1][3] *= 2"]),
        ("output = new", [f"{LAYER} = (new, {LAYER}[1] * 0)"]),
        (
            "output = model.model.layers[1].output + v",
            [f"{LAYER} = (({LAYER}[0] + {LAYER}[1]) + v, {LAYER}[1] * 0)"],
        ),
        (
            "mlp.down_proj.output[:, -1] = 0",
            ["model.model.layers[1].mlp.down_proj.output[0][-1] = 0"],
        ),
    ],
)
def test_a_write_reaches_both_halves(tmp_path, line, there):
    [edit] = only(tmp_path, f"model.model.layers[1].{line}")
    assert [one.strip() for one in edit.after.splitlines()] == there


def test_a_keyword_in_a_read_is_no_write(tmp_path):
    [edit] = only(tmp_path, "x = model.model.layers[1].mlp.output[0].sum(dim=-1).save()")
    assert edit.after.strip() == "x = model.model.layers[1].mlp.output.sum(dim=-1).save()"


def test_plain_lines_are_left_alone(tmp_path):
    assert only(tmp_path, "return {'a': 1}") == ()
    assert only(tmp_path, "model.model.layers[5].mlp.output[:] = 0") == ()


def test_a_call_of_the_head_is_a_product_with_its_weights(tmp_path):
    lens = "def lens(model, h):\n    return model.lm_head(model.model.norm(h)).topk(3)\n\n"
    there = "torch.nn.functional.linear(model.model.norm(h), model.lm_head.weight).topk(3)"
    body = '    with model.trace("a"):\n        x = lens(model, model.model.layers[1].mlp.output)'
    path = file(tmp_path, body).path
    path.write_text(lens + path.read_text())
    [edit] = [one for one in porting.port(source.read(path)).lines if one.line == 2]
    assert edit.after.strip() == f"return {there}"


def test_a_name_of_a_value_stays_what_is_written_into(tmp_path):
    found = porting.port(
        file(tmp_path, "    m = model.model.layers[5].mlp.output\n    m[0] = 0\n    m[:] = 1")
    )
    assert [(one.line, one.after.strip()) for one in found.lines] == [(3, "m[:] = 0")]


def test_one_side_is_bad_input_with_the_other_side_shown(tmp_path):
    both = file(
        tmp_path, '    with model.trace("x"):\n        h = model.model.layers[1].output.save()'
    )
    with pytest.raises(ConformanceError) as caught:
        porting.require_both_sides([both])
    assert caught.value.code is ExitCode.BAD_INPUT
    assert "def vllm(model):" in caught.value.remedy
    assert "line 3" in caught.value.message


FILLING = """\
        with model.trace("x"):
            seen.append(model.model.layers[1].mlp.output.save())"""


def test_what_a_block_fills_is_made_in_it_and_saved(tmp_path):
    body = """\
    seen = {}
    with model.trace("x"):
        for i in range(2):
            seen[i] = model.model.layers[i].mlp.output.save()
    return {"seen": seen}"""
    found = porting.port(file(tmp_path, body))
    assert found.suggestion.splitlines()[1:3] == [
        '    with model.trace("x", temperature=0.0, max_tokens=1):',
        "        seen = {}.save()",
    ]
    assert [edit.line for edit in found.lines] == [2, 3]


@pytest.mark.parametrize("blocks", ["for text in 'ab':", "if model:"])
def test_what_several_blocks_fill_is_not_guessed(tmp_path, blocks):
    more = "" if "for" in blocks else f"\n{FILLING}".replace("\n        ", "\n    ")
    body = f"    seen = []\n    {blocks}\n{FILLING}{more}\n    return {{'seen': seen}}"
    found = porting.port(file(tmp_path, body))
    assert found.suggestion == "" and "after the block" in found.lines[0].why


def ported(tmp_path, *lines, head=""):
    path = tmp_path / "mine.py"
    path.write_text(head + "def hf(model):\n" + "".join(f"    {line}\n" for line in lines))
    return porting.port(source.read(path))


def test_names_that_run_over_layers_are_layers(tmp_path):
    both = "(blk.output[0] + blk.output[1])"
    for line in (
        "x = [blk.output for blk in model.model.layers]",
        "x = [blk.output for i, blk in enumerate(model.model.layers[:3])]",
    ):
        [edit] = ported(tmp_path, line).lines
        assert edit.after.strip() == line.replace("blk.output", both)


def test_the_index_of_a_name_that_holds_a_value_loses_the_batch_axis(tmp_path):
    made = "out = model.model.layers[3].output.save()"
    found = ported(tmp_path, made, "x = out[0]", "y = out[:, -1]", "z = [1, 2][0]")
    assert [edit.after.strip() for edit in found.lines[1:]] == ["x = out", "y = out[-1]"]
    assert "z = [1, 2][0]" in found.suggestion


def test_a_write_to_a_sum_is_not_guessed(tmp_path):
    for write in ("x[:, -1] += 1", "x[0] = 0", "x.zero_()", "x *= 2"):
        found = ported(tmp_path, "x = model.model.layers[2].output", write)
        assert found.suggestion == ""
        assert "does not go back" in found.lines[1].why and not found.lines[1].after
    found = ported(tmp_path, "x = model.model.layers[2].mlp.output", "x[:, -1] = 0")
    assert found.suggestion.endswith("x[-1] = 0")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("acts = [a[0, -1] for a in collect()]", "if this is an activation"),
        ("barrier = tracer.barrier(2)", "run two traces"),
        ("with model.trace(PROMPTS): pass", "takes one prompt"),
        ('with model.trace(["a", "b"]): pass', "takes one prompt"),
    ],
)
def test_what_is_not_known_is_said_and_nothing_is_suggested(tmp_path, line, words):
    found = ported(tmp_path, line)
    assert found.suggestion == "" and words in found.lines[0].why


def test_a_helper_with_other_lines_is_named(tmp_path):
    head = "def zero(layer):\n    layer.output[:] = 0\n\n\n"
    found = ported(tmp_path, "zero(model.model.layers[1])", head=head)
    assert [edit.line for edit in found.lines] == [2] and found.suggestion == ""
    assert ported(tmp_path, "print(model)", head=head).lines == ()


#: A helper, and what it is called with: alike on both sides or not.
HELPERS = [
    ("diff(model.lm_head.output[:, -1])", True),
    ("diff(logits=model.output.logits[:, -1].softmax(-1))", True),
    ("diff(torch.zeros(1, 9))", True),
    ("diff(model.model.layers[1].mlp.output[:, -1])", False),
    ("diff(kept)", False),
    ("list(map(diff, [1]))", False),
    ("diff(loaded(1))", False),
]


@pytest.mark.parametrize(("call", "alike"), HELPERS)
def test_an_index_of_what_is_no_activation_is_alike_on_both_sides(tmp_path, call, alike):
    head = "def diff(logits):\n    return logits[0, ANSWER] - logits[0, OTHER]\n\n\n"
    kept = "kept = [model.model.layers[1].mlp.output[:, -1]]"
    found = ported(tmp_path, kept, f"score = {call}", head=head)
    assert [edit.line for edit in found.lines if edit.line < 5] == ([] if alike else [2])
    assert bool(found.suggestion) is alike


def test_the_last_token_s_logits_under_a_name_are_alike_on_both_sides(tmp_path):
    made = "logits = model.lm_head.output[:, -1].save()"
    assert ported(tmp_path, made, "x = logits[0, 5]").suggestion.endswith("x = logits[0, 5]")
    made = "logits = model.model.layers[1].mlp.output[:, -1].save()"
    assert ported(tmp_path, made, "x = logits[0, 5]").suggestion.endswith("x = logits[5]")


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("x = model.model.layers[1].input_layernorm.input[:, -1].save()", "yours to decide"),
        ("x = model.model.norm.input.save()", "yours to decide"),
        ("x = model.model.layers[1].mlp.inputs[0][0].save()", "an axis less"),
        ("x = model.model.layers[1].mlp.output.mean(dim=1).save()", "axis 1 is another one"),
        ("x = model.model.layers[1].output.norm(dim=2).save()", "axis 2 is another one"),
        ("x = torch.mean(model.model.layers[1].mlp.output, 0).save()", "axis 0 is another one"),
        ("x = loaded(1).mean(dim=1)", ""),
    ],
)
def test_what_the_text_does_not_say_is_the_user_s_to_decide(tmp_path, line, words):
    block = ("with model.trace('a'):", f"    {line}")
    found = ported(tmp_path, *block)
    said = [edit for edit in found.lines if edit.line == 3]
    assert [edit.after for edit in said] == ([""] if words else [])
    assert words in (said[0].why if said else "") and bool(found.suggestion) is not bool(words)


def test_an_axis_of_what_may_be_an_activation_is_not_guessed(tmp_path):
    made = "kept = [model.model.layers[1].mlp.output.save()]"
    found = ported(tmp_path, made, "x = kept[0].mean(dim=1)")
    assert found.suggestion == "" and "if this is an activation" in found.lines[-1].why


def test_weights_outside_of_a_trace_are_said_to_be_away(tmp_path):
    lines = ("with model.trace('a'):", "    h = model.model.layers[1].mlp.output[:, -1].save()")
    after = "x = model.lm_head.weight @ h[0]"
    found = ported(tmp_path, *lines, after)
    assert found.lines[-1].before.strip() == after and found.suggestion == ""
    assert "the model lives in another process" in found.lines[-1].why


def in_a_block(tmp_path, *lines):
    block = 'with model.trace("a", temperature=0.0):'
    return ported(tmp_path, block, *(f"    {line}" for line in lines))


LENS = [
    ("x = model.lm_head(model.model.norm(h))[0].save()", "x = {}.save()"),
    ("x = model.lm_head(model.model.norm(h))[0, -1].save()", "x = {}[-1].save()"),
    ("x = torch.relu(model.lm_head(model.model.norm(h)))[:, -1]", "x = torch.relu({})[-1]"),
]


@pytest.mark.parametrize(("line", "there"), LENS)
def test_what_a_head_makes_of_an_activation_has_no_batch_axis_there(tmp_path, line, there):
    product = "torch.nn.functional.linear(model.model.norm(h), model.lm_head.weight)"
    found = in_a_block(tmp_path, f"h = {LAYER}", line)
    assert found.lines[-1].after.strip() == there.format(product)
    assert found.suggestion.endswith(there.format(product))


@pytest.mark.parametrize(
    ("line", "there"),
    [
        ("x = (h @ model.lm_head.weight.T)[0]", "x = (h @ model.lm_head.weight.T)"),
        ("x = (h + v)[0, -1]", "x = (h + v)[-1]"),
        ("x = model.model.norm(h)[..., -1, :]", "x = model.model.norm(h)[..., -1, :]"),
        ("x = model.model.norm(h)[0][-1]", "x = model.model.norm(h)[-1]"),
    ],
)
def test_what_is_made_of_an_activation_is_indexed_without_it(tmp_path, line, there):
    assert in_a_block(tmp_path, f"h = {LAYER}", line).suggestion.endswith(there)


@pytest.mark.parametrize("index", ["[-1]", "[i]", "[:1]"])
def test_an_index_of_a_batch_that_is_not_known_is_left_to_the_user(tmp_path, index):
    found = in_a_block(tmp_path, f"h = {LAYER}", f"x = model.model.norm(h){index}")
    assert found.suggestion == "" and found.lines[-1].after == ""


def test_of_one_prompt_s_rows_a_stack_is_alike_on_both_sides(tmp_path):
    made = ["kept = []", f"h = {LAYER}", "rows = model.model.norm(h)INDEX", "kept.append(rows)"]
    lines = [*made, "kept = torch.stack(kept)", "x = kept[:, -1]"]
    assert in_a_block(tmp_path, *(one.replace("INDEX", "[0]") for one in lines)).suggestion
    assert not in_a_block(tmp_path, *(one.replace("INDEX", "") for one in lines)).suggestion
