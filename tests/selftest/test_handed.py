"""What nnsight's mediator hands to a block and takes from one, with a fault on and with none."""

from __future__ import annotations

import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar

import pytest
import torch

from conformance.residual_stream import LAYOUTS
from conformance.selftest.fault import find
from conformance.selftest.faults import FAULTS
from conformance.selftest.injecting import handed, switch

LAYER, T, D = "model.model.layers.2.output", 4, 8


@pytest.fixture
def mediator(monkeypatch):
    """A mediator that serves what it holds by location, with the points put in; one row of what
    it serves is padding.
    """

    class Mediator:
        held: ClassVar[dict[str, object]] = {}

        @classmethod
        def value(cls, location):
            return cls.held[location]

        @classmethod
        def swap(cls, location, value):
            cls.held[location] = value

    module = ModuleType("nnsight.intervention.interleaver")
    module.Mediator = Mediator
    monkeypatch.setitem(sys.modules, module.__name__, module)
    handed.install(lambda rows: rows[1:])
    yield Mediator
    switch.disarm()


def armed(name: str, layout: str) -> None:
    model = switch.Traced("model.layers", layout)
    switch.arm(switch.Armed(find(FAULTS, name), 4, model=model))


def output(layout: str):
    """A layer's output, and the stream in it."""
    draw = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, T, D, generator=draw)
    raw = {"dual": (first, second), "batched": first[None], "single": first}[layout]
    return raw, LAYOUTS[layout].read(raw)


@pytest.mark.parametrize("layout", ["dual", "batched", "single"])
def test_a_fault_is_in_what_is_handed_out_and_padding_stays(mediator, layout):
    raw, stream = output(layout)
    mediator.held = {LAYER: raw, "model.model.layers.2.mlp.output": stream}
    assert mediator.value(LAYER) is raw
    armed("zeros.middle", layout)
    seen = LAYOUTS[layout].read(mediator.value(LAYER))
    assert torch.equal(seen[:1], stream[:1]) and not seen[1:].any()
    assert mediator.held[LAYER] is raw  # the engine goes on with what it had
    assert mediator.value("model.model.layers.2.mlp.output") is stream


def test_what_a_fault_leaves_as_it_is_stays_the_very_object(mediator):
    mediator.held = {LAYER: output("dual")[0]}
    armed("zeros.first", "dual")
    assert mediator.value(LAYER) is mediator.held[LAYER]


@pytest.mark.parametrize("layout", ["dual", "batched", "single"])
@pytest.mark.parametrize(("name", "times"), [("write-dropped", 0), ("write-twice", 2)])
def test_a_fault_is_in_what_is_taken(mediator, layout, name, times):
    raw, stream = output(layout)
    mediator.held = {LAYER: raw}
    armed(name, layout)
    mediator.swap(LAYER, LAYOUTS[layout].write(raw, stream + 1))
    assert torch.allclose(LAYOUTS[layout].read(mediator.held[LAYER])[1:], stream[1:] + times)


def test_logits_are_found_on_vllm_and_on_transformers(mediator):
    rows = torch.ones(2, D)
    mediator.held = {"model.logits": rows, "model.output": SimpleNamespace(logits=rows[None])}
    armed("logits-shift=8", "single")
    for seen in (mediator.value("model.logits"), mediator.value("model.output").logits[0]):
        assert torch.equal(seen, torch.tensor([[1.0], [9.0]]).expand(2, D))
    assert torch.equal(rows, torch.ones(2, D))


def test_the_generated_id_is_another(mediator):
    mediator.held = {"model.samples": torch.tensor([7]), "generator.streamer.output": 7}
    armed("token-other", "single")
    assert mediator.value("model.samples") == mediator.value("generator.streamer.output") == 8


ARGUMENTS = "model.model.layers.2.input"


def test_arguments_are_wrong_the_first_time_and_right_after(mediator):
    rows = torch.arange(float(T * D)).reshape(T, D)
    places = torch.arange(T)
    mediator.held = {ARGUMENTS: ((places, rows), {"residual": None})}
    armed("raw-input-rows.middle", "dual")
    (first_places, first), _ = mediator.value(ARGUMENTS)
    assert first_places is places and torch.equal(first, rows.roll(1, dims=0))
    (_, again), _ = mediator.value(ARGUMENTS)
    assert again is rows
