"""An edited run begins at its edit, with the very bits of one that is computed from the start."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from conformance.engines.reference.ensemble import EnsembleMember  # noqa: E402
from conformance.engines.reference.known import same, unchanged  # noqa: E402
from conformance.engines.reference.model import ReferenceModel  # noqa: E402
from conformance.engines.tree import follow, layer_path  # noqa: E402

SIZES: dict[str, dict[str, Any]] = {
    "llama": {"intermediate_size": 48, "num_key_value_heads": 2},
    "gemma2": {"intermediate_size": 48, "num_key_value_heads": 2, "head_dim": 8},
    "gpt2": {},
    "qwen3_moe": {
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
    },
    "mamba2": {"head_dim": 8, "num_heads": 8, "state_size": 8},
}
LAYERS, LAST, PROMPT = 4, 3, "ten words or so"


def reference(architecture: str, pad: int = 0) -> ReferenceModel:
    torch.manual_seed(3)
    config = transformers.CONFIG_MAPPING[architecture](
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=LAYERS,
        num_attention_heads=4,
        initializer_range=0.3,
        pad_token_id=0,
        **SIZES[architecture],
    )
    module = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    module = module.float().eval()
    module.generation_config.pad_token_id = 0
    module.generation_config.eos_token_id = None
    member = EnsembleMember("way", torch.float32, "eager", pad=pad)
    path = layer_path(module, LAYERS)
    return ReferenceModel(module, tokenized, member, path, ())


def tokenized(text: str) -> Any:
    return SimpleNamespace(input_ids=[1 + ord(letter) % 39 for letter in text])


def begun(model: ReferenceModel, **changes: Any) -> tuple[Any, int]:
    """The run, and how many of the layers computed anything in it."""
    computed = []
    layers = follow(model.module, layer_path(model.module, LAYERS))
    inner = [next(layer.children()) for layer in layers]
    handles = [module.register_forward_hook(lambda *_: computed.append(1)) for module in inner]
    model.run("warm", edits={0: lambda stream, _: stream})  # it is tried first
    computed.clear()
    run = model.run(PROMPT, **changes)
    for handle in handles:
        handle.remove()
    return run, len(computed)


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize("architecture", SIZES)
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
    assert unchanged(edited, routed, places, LAYERS) == count
