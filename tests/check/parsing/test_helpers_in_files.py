"""Values and writes are followed through the helpers of a file, and keys that are computed."""

import pytest
import torch

from conformance.check.advice import findings
from conformance.check.advice.edits import logits_edit, read_edit
from conformance.check.advice.errors import failures
from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting
from conformance.check.values.identify import Held
from conformance.check.values.known_values import Known
from conformance.records import Outcome, Site, Status

FILE = """\
import torch

take = lambda layer: layer.output[0]


def rows(layer):
    both = layer.output
    return both[0]


def ablate(layer):
    layer.output[0][:] = 0


def collected(model):
    with model.trace("x", temperature=0.0):
        kept = [rows(layer)[-1] for layer in model.model.layers].save()
    return {f"row {n}": one for n, one in enumerate(kept)}


def hf(model):
    return {}


def vllm(model):
    def resid(layer):
        h, r = layer.output
        return h

    saved = {}
    with model.trace("x", temperature=0.0):
        ablate(model.model.layers[1])
        acts = [resid(layer) for layer in model.model.layers].save()
        short = take(model.model.layers[2]).save()
        mid = model.model.layers[3].mlp.output.save()
        out = model.model.layers[0].output.save()
    for n in range(2):
        saved[f"mid {n}"] = mid
        saved[f"late {n}"] = out[1]
    saved["short"] = short
    return {"acts": {"all": torch.stack(acts)}, **saved, **collected(model)}
"""


@pytest.fixture
def places(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(FILE)
    return Places(source.read(path), "vllm")


@pytest.mark.parametrize(
    ("name", "line"),
    [("acts_all", 27), ("short", 3), ("mid_1", 35), ("late_0", 36), ("row_2", 7), ("absent", 0)],
)
def test_a_name_leads_to_the_line_that_reads_its_value(places, name, line):
    statement = places.origin(name)
    assert (statement.lineno if statement else 0) == line


def test_what_puts_a_value_under_its_name_is_known(places):
    assert places.filling("mid_1").lineno == 38
    assert places.filling("acts_all") is None


@pytest.mark.parametrize(
    ("name", "line", "after"),
    [
        ("acts_all", 28, "return (h + r)"),
        ("row_1", 8, "return (both[0] + both[1])"),
        ("late_1", 39, 'saved[f"late {n}"] = (out[0] + out[1])'),
        ("short", 3, "take = lambda layer: (layer.output[0] + layer.output[1])"),
    ],
)
def test_half_of_a_pair_is_mended_where_it_is_used_alone(places, name, line, after):
    edit = read_edit(places, name, Held("mlp", "the MLP output", 2))
    assert (edit.line, edit.after.strip()) == (line, after)


def test_a_write_in_a_helper_is_found(places):
    edit = write_edit(places, Parting(1, 0, 0, (0,), 1, "first-half"))
    assert edit.line == 12
    assert edit.after.splitlines()[1].strip() == "layer.output[1][:] = 0"


def ported(tmp_path, *lines):
    path = tmp_path / "port.py"
    body = "\n".join(f"        {line}" for line in lines)
    head = 'def hf(model):\n    return {}\n\n\ndef vllm(model):\n    with model.trace("x"):\n'
    path.write_text(f"{head}{body}\n    return {{}}\n")
    return source.read(path)


@pytest.mark.parametrize(
    ("bound", "write", "also"),
    [
        ("a, b = model.model.layers[1].output", "a[-1, :] = h", "b[-1, :] = 0"),
        ("a, b = model.model.layers[1].output", "b[:] *= 2", "a[:] *= 2"),
        (
            "a = model.model.layers[1].output[0]",
            "a[-1, :] = h",
            "model.model.layers[1].output[1][-1, :] = 0",
        ),
    ],
)
def test_a_write_to_one_of_two_names_is_mended_by_the_other(tmp_path, bound, write, also):
    places = Places(ported(tmp_path, bound, write), "vllm")
    kind = "second-half" if write.startswith("b") else "first-half"
    edit = write_edit(places, Parting(1, 0, 0, (0,), 1, kind))
    assert [line.strip() for line in edit.after.splitlines()] == [write, also]


def test_the_first_token_for_the_first_prompt_is_mended_by_all_tokens(tmp_path):
    line = "model.model.layers[1].output[0][0] += 4 * v"
    places = Places(ported(tmp_path, line), "vllm")
    edit = write_edit(places, Parting(1, 0, 0, (1, 2), 3, "partial"))
    assert edit.after.strip() == "model.model.layers[1].output[0][:] += 4 * v"
    assert "no batch axis" in edit.why


def test_a_value_that_is_rebound_and_not_used_again_is_the_line_without_effect(tmp_path):
    lines = ("m, r = model.model.layers[1].output", "h = m + r", "u = unit(h)", "h = h - u")
    places = Places(ported(tmp_path, *lines), "vllm")
    edit = write_edit(places, Parting(1, 0, 0, (0,), 1, "dropped"))
    assert edit.line == 10 and edit.after.splitlines()[1].strip().startswith(
        "model.model.layers[1]"
    )


def test_of_a_later_step_no_copy_is_blamed(tmp_path):
    lines = "h = torch.tanh(model.model.layers[1].output[0])", "h[:] += v"
    places = Places(ported(tmp_path, *lines), "vllm")
    assert "copied first" in write_edit(places, Parting(1, 0, 0, (0,), 1, "dropped")).why
    assert "copy" not in write_edit(places, Parting(1, 1, 0, (0,), 1, "dropped")).why


def test_a_tuple_of_one_is_one_for_two(tmp_path):
    file = ported(tmp_path, "model.model.layers[1].output = (x,)")
    words = "ValueError: not enough values to unpack (expected 2, got 1)"
    told = failures.explain(failed(file, words, dual=True))
    assert (told.findings[0].kind, told.findings[0].edit.line) == ("one-for-two", 7)
    file = ported(tmp_path, "model.model.layers[1].output = (x, y)")
    assert failures.explain(failed(file, words, dual=True)).words == words


def test_what_one_tensor_is_made_of_is_summed_where_a_pair_is_put(tmp_path):
    layer = "model.model.layers[1].output"
    file = ported(tmp_path, f"{layer} = {layer} * 1.5")
    words = "TypeError: can't multiply sequence by non-int of type 'float'"
    told = failures.explain(failed(file, words, dual=True))
    summed = f"({layer}[0] + {layer}[1]) * 1.5"
    assert told.findings[0].edit.after.strip() == f"{layer} = ({summed}, {layer}[1] * 0)"


def test_what_is_asked_for_too_late_is_found_by_its_name(tmp_path):
    file = ported(
        tmp_path,
        "a = {i: model.model.layers[i].mlp.output.save() for i in (1, 2)}",
        "b = model.model.embed_tokens.output.save()",
    )
    words = (
        "OutOfOrderError: 'model.model.{}.output.i0' was requested but the model already ran past"
    )
    told = failures.explain(failed(file, words.format("model.embed_tokens")))
    assert told.findings[0].edit.line == 8
    told = failures.explain(failed(file, words.format("model.layers.1.mlp")))
    assert told.findings[0].edit.line == 7


LATE = """\
def hf(model):
    return {}


def vllm(model):
    middle = n // 2
    with model.trace("x"):
        layer = model.model.layers[middle]
        last = layer.output[0].save()
    with model.trace("x"):
        hidden = model.model.layers[middle].output[0]
        logits = model.logits.clone().save()
        for i in range(3, 4):
            layer = model.model.layers[i]
            more = (layer.output[0] + layer.output[1]).save()
        for one in model.model.layers[2:]:
            one.output[0].save()
    return {"logits": logits}
"""


@pytest.mark.parametrize("line", [11, 15, 17])
def test_of_several_that_may_be_asked_for_too_late_it_is_the_line_that_waited(tmp_path, line):
    path = tmp_path / "port.py"
    path.write_text(LATE)
    file = source.read(path)
    words = "OutOfOrderError: 'model.model.layers.3.output.i0' was requested but the model already"
    detail = f'  File "<nnsight 1>", line {line}, in block\n    {file.line(line).strip()}\n{words}'
    outcome = Outcome(Status.ERROR, 0.1, f"{words} ran past it", detail)
    told = failures.explain(failures.Failed(outcome, file, "vllm", there=True))
    assert told.findings[0].edit.line == line
    outcome = Outcome(Status.ERROR, 0.1, f"{words} ran past it", "")
    assert failures.explain(failures.Failed(outcome, file, "vllm", there=True)).findings == ()


def test_a_raw_read_beside_the_adapter_is_mended_by_the_adapters(tmp_path):
    path = tmp_path / "raw.py"
    path.write_text(
        "def trace(lm):\n"
        '    with lm.trace("x"):\n'
        "        x = lm.model.model.layers[2].output[0].clone().save()\n"
        '    return {"x": x}\n'
    )
    places = Places(source.read(path), "trace", dual=False)
    edit = read_edit(places, "x", Held("mlp", "the MLP output", 2))
    assert edit.after.strip() == "x = lm.layers[2].stream.clone().save()"


@pytest.mark.parametrize("index", ["[:, -1]", "[0, -1]", "[:, -1, :]"])
def test_logits_have_no_token_to_take(tmp_path, index):
    path = tmp_path / "port.py"
    body = f"    with model.trace('x'):\n        x = model.logits{index}.save()\n"
    body += "    return {'x': x}\n"
    path.write_text(f"def hf(model):\n    return {{}}\n\n\ndef vllm(model):\n{body}")
    edit = logits_edit(Places(source.read(path), "vllm"), "x")
    assert (edit.line, edit.after.strip()) == (7, "x = model.logits.save()")


def failed(file, words, **more):
    detail = f'  File "<nnsight 1>", line 7, in block\n    {file.line(7).strip()}\n{words}'
    return failures.Failed(Outcome(Status.ERROR, 0.1, words, detail), file, "vllm", **more)


def test_another_familys_path_is_mended_by_this_models(tmp_path):
    file = ported(tmp_path, "h = model.transformer.h[2].output[0].save()")
    words = "AttributeError: 'VLLM' object (nor its module) has attribute 'transformer'"
    told = failures.explain(failed(file, words, layer_list="model.layers"))
    assert "this model's layers are at `model.layers`" in told.words
    assert told.findings[0].edit.after.strip() == "h = model.model.layers[2].output[0].save()"
    told = failures.explain(failed(file, words, layer_list="transformer.h"))
    assert "layers are at" not in told.words


@pytest.mark.parametrize(
    ("words", "meaning"),
    [
        ("OutOfOrderError: 'x.i0' was requested but the model already ran past it", "the order"),
        ("NotImplementedError: tracer.barrier(2) cannot work on vLLM", "run two traces"),
        ("ValueError: Multiple prompts per invoke are not supported.", "takes one prompt"),
    ],
)
def test_words_of_nnsights_are_put_into_what_to_do(tmp_path, words, meaning):
    told = failures.explain(failed(ported(tmp_path, "x = 1"), words))
    assert meaning in told.words and told.findings[0].edit.line == 7


def test_a_dict_that_stays_empty_there_is_the_cause_of_what_fails_after_it(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(
        "def hf(model):\n    return {}\n\n\n"
        "def vllm(model):\n"
        "    kept = []\n"
        '    with model.trace("x"):\n'
        "        kept.append(model.logits.save())\n"
        "    return {'all': stack(kept)}\n"
    )
    file = source.read(path)
    words = "RuntimeError: stack expects a non-empty TensorList"
    told = failures.explain(failures.Failed(Outcome(Status.ERROR, 0.1, words), file, "vllm", True))
    assert told.findings[0].kind == "unsaved" and told.findings[0].edit.line == 6
    told = failures.explain(failures.Failed(Outcome(Status.ERROR, 0.1, words), file, "vllm"))
    assert told.words == words


def test_logits_before_and_after_a_cap_are_told_apart_though_both_are_known(tmp_path):
    maker = torch.Generator().manual_seed(2)
    before = 30 * torch.randn(1, 16, generator=maker)
    after = 20 * torch.tanh(before / 20)
    known = [
        Known("lm_head", "the logits", before),
        Known("logits", "the logits", after, written=True),
    ]
    site = Site("logits")
    places = Places(ported(tmp_path, "x = model.logits.save()"), "vllm")
    explain = findings._Explaining(places, {site: before}, {site: after}, known, {}, written=True)
    assert explain.read(site).kind == "capped"
