"""Layouts: what is written is read back, and the reading that holds is found by measuring."""

from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from conformance.engines.structure import map_tensors, tensors_in
from conformance.spec.residual_stream import (
    LAYOUTS,
    StreamLayer,
    UnreadableLayerError,
    describe,
    settle,
)

TOKENS, WIDTH, DEPTH = 6, 16, 3


def reference():
    generator = torch.Generator().manual_seed(7)
    return [torch.randn(TOKENS, WIDTH, generator=generator) for _ in range(DEPTH)]


def forms(value):
    """The stream as each layout holds it."""
    noise = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    return {
        "single": value,
        "batched": value[None],
        "dual": (value - noise, noise),
        "full_plus_stale": (value, noise),
        "second": (noise, value),
        "tuple": (value, None),
        "tuple_batched": (value[None], None),
    }


#: Beside the stream, some layers return keys and values that later layers share.
MORE = (torch.ones(TOKENS, 3), torch.ones(TOKENS, 3))


@pytest.mark.parametrize("more", [(), (MORE,)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_the_layout_that_holds_is_found(name, more):
    outputs = [forms(value)[name] for value in reference()]
    outputs = [(*one, *more) if isinstance(one, tuple) else one for one in outputs]
    settled = settle(outputs, reference(), [0.01] * DEPTH)
    assert settled.layout == name, settled


@pytest.mark.parametrize("more", [(), (MORE,)])
@pytest.mark.parametrize("name", LAYOUTS)
def test_what_is_written_is_read_back(name, more):
    output, value = forms(reference()[0])[name], reference()[1]
    output = (*output, *more) if isinstance(output, tuple) else output
    written = LAYOUTS[name].write(output, value)
    assert LAYOUTS[name].fits(written)
    assert torch.equal(LAYOUTS[name].read(written), value)
    if more and isinstance(output, tuple):
        assert written[-1] is MORE


def test_no_reading_that_holds_is_said_with_what_was_tried():
    outputs = [(value * 3, value) for value in reference()]
    settled = settle(outputs, [value + 1 for value in reference()], [0.01] * DEPTH)
    assert settled.layout == ""
    assert "tensor[6, 16]" in settled.reason
    assert set(settled.tried) == {"dual", "full_plus_stale", "second"}


def test_two_readings_that_hold_and_differ_settle_nothing():
    outputs = [(value, value * 1.0001) for value in reference()]
    settled = settle(outputs, reference(), [0.01] * DEPTH)
    assert settled.layout == ""
    assert "several readings" in settled.reason


def test_a_reading_must_hold_at_every_layer_also_a_pinned_one():
    outputs = [forms(value)["dual"] for value in reference()]
    assert settle(outputs, reference(), [0.01] * DEPTH, "dual").layout == "dual"
    assert settle(outputs, reference(), [0.01] * DEPTH, "second").layout == ""
    outputs[-1] = forms(reference()[-1])["full_plus_stale"]
    assert settle(outputs, reference(), [0.01] * DEPTH).layout == ""


def test_a_massive_activation_of_one_token_does_not_hide_a_wrong_reading():
    streams = reference()
    for value in streams:
        value[0, 3] = 20_000
    outputs = [(value, torch.randn(TOKENS, WIDTH)) for value in streams]
    settled = settle(outputs, streams, [0.01] * DEPTH)
    assert settled.layout == "full_plus_stale"


def layer_of(output, layout):
    return StreamLayer(SimpleNamespace(output=output), layout)


def test_a_layer_reads_a_copy_and_writes_through():
    layer = layer_of(torch.zeros(2, 3), "single")
    read = layer.stream
    read += 1
    assert torch.equal(layer.envoy.output, torch.zeros(2, 3))
    layer.stream = read
    assert torch.equal(layer.envoy.output, torch.ones(2, 3))


@pytest.mark.parametrize("layout", ["single", "batched", "dual", "full_plus_stale", "second"])
def test_what_is_written_has_the_precision_of_what_was_there(layout):
    layer = layer_of(map_tensors(forms(reference()[0])[layout], Tensor.bfloat16), layout)
    layer.stream = layer.stream + torch.ones(WIDTH)
    assert {part.dtype for part in tensors_in(layer.envoy.output)} == {torch.bfloat16}


def test_a_layer_of_another_form_than_its_layout_says_so():
    layer = layer_of((torch.zeros(2, 3),), "dual")
    words = r"the layer gave \(tensor\[2, 3\]\), not two summands"
    with pytest.raises(UnreadableLayerError, match=words):
        layer.stream  # noqa: B018
    with pytest.raises(UnreadableLayerError, match=words):
        layer.stream = torch.zeros(2, 3)


def test_a_value_that_fails_by_itself_is_not_called_unreadable():
    class Elsewhere:
        def __getitem__(self, _: int) -> Tensor:
            raise RuntimeError("on another stage")

    with pytest.raises(RuntimeError, match="on another stage"):
        layer_of(Elsewhere(), "dual").stream  # noqa: B018


def test_forms_are_described_in_words():
    assert describe((torch.zeros(2, 3), None)) == "(tensor[2, 3], NoneType)"
