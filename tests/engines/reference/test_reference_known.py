"""An edited run begins at its edit, with the very bits of one that is computed from the start."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.engines.reference.ensemble import EnsembleMember
from conformance.engines.reference.known import count_unchanged_layers, same
from conformance.engines.reference.model import ReferenceModel
from conformance.engines.tree import follow, hooked, layer_path
from tests.engines import tiny

FAMILIES = ("llama", "gemma2", "gpt2", "qwen3_moe", "mamba2")
LAYERS, LAST, PROMPT = 4, 3, "ten words or so"


def reference(architecture: str, pad: int = 0) -> ReferenceModel:
    module = tiny.build(architecture, LAYERS)
    member = EnsembleMember("way", torch.float32, "eager", pad=pad)
    path = layer_path(module, LAYERS)
    return ReferenceModel(module, tiny.tokenized, member, path, ())


def begun(model: ReferenceModel, **changes: Any) -> tuple[Any, int]:
    """The run, and how many of the layers computed anything in it."""
    computed = []
    layers = follow(model.module, layer_path(model.module, LAYERS))
    inner = [next(layer.children()) for layer in layers]
    with hooked(one.register_forward_hook(lambda *_: computed.append(1)) for one in inner):
        model.run("warm", edits={0: lambda stream, _: stream})  # it is tried first
        computed.clear()
        return model.run(PROMPT, **changes), len(computed)


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("architecture", FAMILIES)
def test_a_run_that_is_begun_at_its_edit_is_the_whole_one(architecture: str, pad: int) -> None:
    edits = {LAST - 1: lambda stream, earlier: stream * 2 + earlier[0]}
    model, fresh = reference(architecture, pad), reference(architecture, pad)
    model.run(PROMPT)
    run, computed = begun(model, edits=edits)
    assert computed == 1
    whole, all_layers = begun(fresh, edits=edits)
    assert all_layers == LAYERS
    assert same(run, whole)
    assert not same(run, model.run(PROMPT))


def test_an_edit_in_place_is_not_in_what_is_known() -> None:
    model = reference("llama")
    clean = model.run(PROMPT)

    def twice(stream: torch.Tensor, _: Any) -> torch.Tensor:
        return stream.mul_(2)

    first, _ = begun(model, edits={LAST: twice})
    again, _ = begun(model, edits={LAST: twice})
    assert same(first, again)
    assert same(clean, reference("llama").run(PROMPT))


def test_a_model_whose_layers_compute_from_more_than_the_stream_is_computed_whole() -> None:
    model = reference("llama")
    layers = follow(model.module, layer_path(model.module, LAYERS))
    seen: list[torch.Tensor] = [torch.zeros(())]

    def remember(_: Any, args: Any, output: torch.Tensor) -> None:
        seen[0] = output.mean()

    def use(_: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + seen[0]

    layers[0].mlp.register_forward_hook(remember)
    layers[LAST].register_forward_hook(use)
    model.run(PROMPT)
    _, computed = begun(model, edits={LAST: lambda stream, _: stream * 2})
    assert computed == LAYERS


@pytest.mark.parametrize(
    ("edited", "routed", "places", "count"),
    [
        ((2,), (), (), 3),
        ((2, 1), (), (), 2),
        ((2,), (1,), (), 1),
        ((), (), (("mlp", 3), ("attention", 2)), 2),
        ((), (), (("embedding", None),), 0),
        ((), (), (), 4),
    ],
)
def test_a_layer_is_known_before_the_first_change(edited, routed, places, count) -> None:
    assert count_unchanged_layers(edited, routed, places, LAYERS) == count
