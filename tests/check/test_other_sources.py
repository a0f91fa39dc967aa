"""The write is right, and what it writes is read elsewhere than in `hf`: that line is the cause."""

import pytest

from conformance.check.advice.causes import ordered
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import Parting

PART = Parting(2, 0, 0, (0, 1, 2, 3), 4, words="another change is made")

HF = """\
def hf(model):
    at = len(model.model.layers) // 2
    with model.trace("a"):
        love = model.model.layers[at].output.float().mean(dim=1)[0].save()
    with model.trace("b"):
        hate = model.model.layers[at].output.float().mean(dim=1)[0].save()
    vector = love - hate
    with model.trace("c"):
        hidden = model.model.layers[at].output
        hidden[:] += vector.to(hidden.dtype)
        logits = model.lm_head.output.save()
    return {"logits": logits}

"""

VLLM = """\
def push(model, vector, at):
    with model.trace("c"):
        hidden = model.model.layers[at].output[0]
        hidden[:] += vector.to(hidden.dtype)
        logits = model.logits.save()
    return {"logits": logits}

def vllm(model):
    at = len(model.model.layers) // 2
    with model.trace("a"):
        layer = model.model.layers[AT]
        love = (layer.output[0] + layer.output[1]).float().mean(dim=0).save()
    with model.trace("b"):
        layer = model.model.layers[AT]
        hate = (layer.output[0] + layer.output[1]).float().mean(dim=0).save()
    return push(model, love - hate, at)
"""


def found(tmp_path, body):
    path = tmp_path / "mine.py"
    path.write_text(body)
    return ordered(PART, Places(source.read(path), "vllm"), [], dual=True)


@pytest.mark.parametrize("wrong", ["at - 1", "at + 1", "0"])
def test_a_read_of_another_layer_is_named_before_the_write(tmp_path, wrong):
    first, second, last = found(tmp_path, HF + VLLM.replace("AT", wrong))
    assert [one.edit.line for one in (first, second)] == [24, 27]
    assert first.edit.after.strip() == "layer = model.model.layers[at]"
    assert f"line 24 reads `model.model.layers[{wrong}]`, and line 4 of `hf`" in first.words
    assert last.words.startswith("so the layers differ since layer 2")


def test_the_same_reads_are_no_cause(tmp_path):
    [only] = found(tmp_path, HF + VLLM.replace("AT", "at"))
    assert only.words.startswith("the layers differ")
    assert "the value that it writes is another one" in only.words


def test_a_layer_that_a_name_here_does_not_have_is_shown_without_an_edit(tmp_path):
    body = VLLM.replace("vector, at)", "vector, place)").replace("layers[at]", "layers[place]")
    body = body.replace("    at = len(model.model.layers) // 2\n", "").replace(
        "hate, at", "hate, 2"
    )
    first, *_ = found(tmp_path, HF + body.replace("AT", "1"))
    assert (first.edit.line, first.edit.after) == (23, "")
