"""What transformers computes besides a trace: with nothing written, and as the trace left it."""

from types import SimpleNamespace

import pytest
import torch

from conformance.engines.user_trace import catalogue

WIDTH, IDS = 4, torch.tensor([1, 2, 3])


class Layer(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.mlp = torch.nn.Linear(WIDTH, WIDTH)

    def forward(self, stream):
        return stream + self.mlp(stream)


class Model(torch.nn.Module):
    """Two layers, which count how often they run."""

    device = "cpu"

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.embed = torch.nn.Embedding(8, WIDTH)
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.ran = 0

    def forward(self, input_ids, use_cache):
        self.ran += 1
        stream = self.embed(input_ids)
        for layer in self.layers:
            stream = layer(stream)
        return SimpleNamespace(logits=stream)


def streams(model, sequence, changed=None):
    """What plain hooks see of a trace that adds one after the layer `changed`, or before the first
    where that is -1.
    """
    found = {f"p{sequence}/s0/ids": IDS}
    with torch.no_grad():
        stream = model.embed(IDS[None]) + (changed == -1)
        found[f"p{sequence}/s0/entry"] = stream[0].clone()
        for index, layer in enumerate(model.layers):
            stream = layer(stream) + (index == changed)
            found[f"p{sequence}/s0/stream.{index}"] = stream[0].clone()
    return found


def test_what_is_not_written_is_computed_once_and_equal_sequences_too():
    model = Model()
    found = catalogue.everything(model, "layers", streams(model, 0) | streams(model, 1))
    assert model.ran == 1
    assert {key.partition("|")[0] for key in found} == {"clean", "value"}


def test_of_a_sequence_that_was_written_both_are_there():
    model = Model()
    seen = streams(model, 0) | streams(model, 1, changed=0)
    found = catalogue.everything(model, "layers", seen)
    assert model.ran == 2
    natural = found["natural|p1/s0/stream.0"], found["natural|p1/s0/stream.1"]
    torch.testing.assert_close(natural[0], seen["p0/s0/stream.0"])
    torch.testing.assert_close(natural[1], seen["p1/s0/stream.1"])
    assert not any(key.startswith(("natural|p0", "written|0")) for key in found)


def test_what_was_written_to_the_embeddings_goes_on():
    model = Model()
    seen = streams(model, 0) | streams(model, 1, changed=-1)
    found = catalogue.everything(model, "layers", seen)
    torch.testing.assert_close(found["clean|p0/s0/entry"], seen["p0/s0/entry"])
    for layer in range(2):
        own = found[f"natural|p1/s0/stream.{layer}"]
        torch.testing.assert_close(own, seen[f"p1/s0/stream.{layer}"])


def test_one_bound_holds_for_all_of_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(catalogue, "BYTES", 300)
    model = Model()
    found = catalogue.everything(model, "layers", streams(model, 0, changed=0))
    assert 0 < sum(value.numel() * 4 for value in found.values()) < 300
