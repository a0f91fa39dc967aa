"""What a value holds instead is recognised by its numbers."""

import torch

from conformance.check.identify import catalogue, identify

TOKENS, WIDTH, LAYERS = 5, 16, 3


def recorded():
    """What transformers' side of a check writes, of a model without a trace's writes."""
    maker = torch.Generator().manual_seed(0)
    seen = {"layers|p0/s0/ids": torch.tensor([3, 1, 4, 1, 5])}
    stream = torch.randn(TOKENS, WIDTH, generator=maker)
    for layer in range(LAYERS):
        branch = torch.randn(TOKENS, WIDTH, generator=maker)
        stream = stream + torch.randn(TOKENS, WIDTH, generator=maker) + branch
        seen[f"layers|p0/s0/stream.{layer}"] = stream
        seen[f"clean|p0/s0/stream.{layer}"] = stream
        seen[f"value|0|model.layers.{layer}.mlp|output"] = branch
    seen["value|0||logits"] = torch.randn(TOKENS, 32, generator=maker)
    return seen


SEEN = recorded()
KNOWN = catalogue(SEEN, "model.layers")


def held(value):
    found = identify(value, KNOWN)
    return found and (found.kind, found.layer, found.rows)


def test_both_halves_of_a_stream_are_told_apart():
    branch = SEEN["value|0|model.layers.1.mlp|output"]
    whole = SEEN["clean|p0/s0/stream.1"]
    assert held(whole) == ("stream", 1, "")
    assert held(branch) == ("mlp", 1, "")
    assert held(whole - branch) == ("residual", 1, "")


def test_rounding_in_float32_changes_nothing_and_bf16_does():
    whole = SEEN["clean|p0/s0/stream.2"]
    assert held(whole * (1 + 1e-6)) == ("stream", 2, "")
    assert held(whole.bfloat16().float()) is None


def test_rows_are_named():
    whole = SEEN["clean|p0/s0/stream.0"]
    assert held(whole[0]) == ("stream", 0, "token 0")
    assert held(whole[-1]) == ("stream", 0, "the last token")
    assert held(SEEN["value|0||logits"][-1:]) == ("logits", None, "the last token")


def test_positions_are_no_activations():
    assert held(torch.arange(TOKENS)) == ("positions", None, "")
    assert held(torch.tensor([3, 1, 4, 1, 5])) != ("positions", None, "")


def test_what_is_nowhere_is_not_named():
    assert held(torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(9))) is None
