"""What a norm is given on vLLM is half of the stream: the line that reads it, with the sum."""

import pytest
import torch

from conformance.check.advice.edits import GIVEN, norm_edit, read_edit
from conformance.check.advice.findings import _Explaining
from conformance.check.parsing import source
from conformance.check.parsing.dataflow import Places
from conformance.check.values.identify import Held
from conformance.records import Site

NORM = "model.model.layers[1].input_layernorm"


def places(folder, line):
    path = folder / "norms.py"
    path.write_text(
        "def hf(model):\n"
        '    with model.trace("a"):\n'
        f"        x = ({NORM}.input[:, -1] * 3).save()\n"
        '    return {"x": x}\n\n\n'
        "def vllm(model):\n"
        '    with model.trace("a"):\n'
        f"        {line}\n"
        '    return {"x": x}\n'
    )
    return Places(source.read(path), "vllm")


@pytest.mark.parametrize(
    ("line", "after"),
    [
        (f"x = {NORM}.input[-1].save()", f"x = sum({NORM}.inputs[0])[-1].save()"),
        (f"x = {NORM}.inputs[0][0].save()", f"x = sum({NORM}.inputs[0]).save()"),
        (f"x = ({NORM}.input[-1] * 3).save()", f"x = (sum({NORM}.inputs[0])[-1] * 3).save()"),
    ],
)
@pytest.mark.parametrize("kind", ["mlp", "attention"])
def test_a_norm_s_input_is_mended_by_the_sum(tmp_path, line, after, kind):
    edit = read_edit(places(tmp_path, line), "x", Held(kind, "half of it", 0))
    assert (edit.line, edit.after.strip(), edit.why) == (9, after, GIVEN)


def test_the_sum_and_what_a_norm_returns_are_left_alone(tmp_path):
    assert norm_edit(places(tmp_path, f"x = sum({NORM}.inputs[0])[-1].save()"), "x") is None
    assert norm_edit(places(tmp_path, f"x = {NORM}.output[0][-1].save()"), "x") is None


@pytest.mark.parametrize("size", [1, 64])
def test_a_value_that_is_computed_from_it_is_suspected(tmp_path, size):
    site = Site("x")
    maker = torch.Generator().manual_seed(0)
    mine, truth = (torch.randn(size, generator=maker) for _ in range(2))
    made = places(tmp_path, f"x = ({NORM}.input[-1] * 3).save()")
    explaining = _Explaining(made, {site: truth}, {site: mine}, [], {}, written=False)
    finding = explaining.read(site)
    assert finding.kind == "half" and GIVEN in finding.words
    assert f"sum({NORM}.inputs[0])[-1] * 3" in finding.edit.after
