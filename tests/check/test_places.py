"""The line of the user's file, and the edit that mends it."""

import pytest

from conformance.check import source
from conformance.check.edits import layer_edit, read_edit, write_edit
from conformance.check.places import Places

FILE = """\
LAYER = 3

def hf(model):
    return {}

def vllm(model):
    hidden = []
    with model.trace("x", temperature=0.0):
        target = model.model.layers[LAYER]
        target.output[0][:] = 0
        half = model.model.layers[2].output[0].clone().save()
        for layer in model.model.layers:
            hidden.append(layer.output[1].clone())
        last = model.model.layers[1].output[0][-1].save()
    kept = last * 2
    return {"half": half, "all": hidden, "last one": kept}
"""


@pytest.fixture
def places(tmp_path):
    path = tmp_path / "port.py"
    path.write_text(FILE)
    return Places(source.read(path), "vllm")


def test_a_value_comes_from_the_line_that_reads_it(places):
    assert places.origin("half").lineno == 11
    assert places.origin("all").lineno == 13
    assert places.origin("last_one").lineno == 14
    assert places.origin("absent") is None


def test_half_of_a_stream_is_mended_by_the_sum(places):
    edit = read_edit(places, "half", "mlp", "")
    assert edit.line == 11
    assert edit.after.strip() == (
        "half = (model.model.layers[2].output[0] + model.model.layers[2].output[1]).clone().save()"
    )


def test_a_neighbouring_layer_is_mended_by_its_number(places):
    edit = layer_edit(places, "half", 1)
    assert "layers[3].output[0]" in edit.after


def test_a_write_is_found_by_its_layer_through_names(places):
    [write] = places.writes()
    assert (write.line, write.layer, write.index) == (10, 3, 0)
    edit = write_edit(places, 3, "first-half")
    assert edit.line == 10
    assert [line.strip() for line in edit.after.splitlines()] == [
        "target.output[0][:] = 0",
        "target.output[1][:] = 0",
    ]
