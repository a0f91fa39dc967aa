"""Two writes in one trace: which of them parts the two sides."""

import pytest

from conformance.check.advice.writes.write_edits import write_edit
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.divergence import BEFORE, Parting

FILE = """\
def hf(model):
    for i in range(3):
        with model.trace("a"):
            embedding = model.model.embed_tokens.output
            embedding[:, 2] += 1
            model.model.layers[i].output[:, 1] = 0
            logits = model.lm_head.output.save()
    return {{"logits": logits}}


def vllm(model):
    for i in range(3):
        with model.trace("a", temperature=0.0, max_tokens=1):
            embedding = model.model.embed_tokens.output
            {noise}
            layer = model.model.layers[i]
            layer.output[0][1] = 0
            {cleared}
            logits = model.logits.save()
    return {{"logits": logits}}
"""

NOISE, CLEARED = "embedding[2] += 1", "layer.output[1][1] = 0"


def places(tmp_path, noise=NOISE, cleared=CLEARED, text=FILE):
    path = tmp_path / "mine.py"
    path.write_text(text.format(noise=noise, cleared=cleared))
    return Places(source.read(path), "vllm")


def part(layer, kind, **more):
    return Parting(layer, 0, 1, (1,), 4, kind=kind, own=1, ran=3, **more)


def test_where_the_first_layer_is_given_the_same_it_is_the_layers_write(tmp_path):
    edit = write_edit(places(tmp_path, cleared="pass"), part(0, "first-half", entered=True))
    assert edit.line == 17 and edit.after.endswith("layer.output[1][1] = 0")


def test_where_it_is_not_it_is_that_to_the_embeddings(tmp_path):
    edit = write_edit(places(tmp_path, noise="embedding[1] += 1"), part(BEFORE, "other-tokens"))
    assert edit.line == 15


def test_what_the_trace_does_not_write_to_the_embeddings_is_shown_from_hf(tmp_path):
    read = "            embedding = model.model.embed_tokens.output\n            {noise}"
    text = FILE.replace(read, "            {noise}")
    edit = write_edit(places(tmp_path, noise="pass", text=text), part(BEFORE, "dropped"))
    assert (edit.line, edit.after) == (13, "")
    assert "`embedding[:, 2] += 1`, line 5, and this trace nothing in its place" in edit.why


@pytest.mark.parametrize("kind", ["", "partial", "other-tokens"])
def test_of_two_at_one_layer_it_is_rather_the_one_that_is_not_as_in_hf(tmp_path, kind):
    text = FILE.replace("model.model.embed_tokens.output", "model.model.layers[0].mlp.output")
    text = text.replace("layers[i]", "layers[0]")
    edit = write_edit(places(tmp_path, text=text), part(0, kind, entered=True))
    assert edit.line == 17


def test_a_write_to_a_part_of_the_layer_that_hf_writes_to_is_named_with_that(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "def hf(model):\n"
        "    with model.trace('a'):\n"
        "        for layer in model.model.layers:\n"
        "            layer.output[:] = 0\n"
        "        logits = model.lm_head.output.save()\n"
        "    return {'logits': logits}\n\n\n"
        "def vllm(model):\n"
        "    with model.trace('a', temperature=0.0, max_tokens=1):\n"
        "        for layer in model.model.layers:\n"
        "            layer.mlp.output[:] = 0\n"
        "        logits = model.logits.save()\n"
        "    return {'logits': logits}\n"
    )
    edit = write_edit(Places(source.read(path), "vllm"), part(0, "", entered=True))
    assert edit.line == 12
    assert "it writes to `mlp.output`, and `hf` to `layer.output`" in edit.why
