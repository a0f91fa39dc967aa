"""What a value holds instead is recognised by its numbers."""

import pytest
import torch

from conformance.commands.check.values.divergence import written
from conformance.commands.check.values.known_values import Known, catalogue, identify

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
        seen[f"value|0/0|model.layers.{layer}.mlp|output"] = branch
    seen["value|0/0||logits"] = torch.randn(TOKENS, 32, generator=maker)
    return seen


SEEN = recorded()
KNOWN = catalogue(SEEN, "model.layers")


def held(value):
    found = identify(value, KNOWN)
    return found and (found.kind, found.layer, found.held)


WHOLE, BRANCH = SEEN["clean|p0/s0/stream.1"], SEEN["value|0/0|model.layers.1.mlp|output"]
OTHER = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(9))


@pytest.mark.parametrize(
    ("value", "found"),
    [
        (WHOLE, ("stream", 1, "")),
        (BRANCH, ("mlp", 1, "")),
        (WHOLE - BRANCH, ("residual", 1, "")),
        (WHOLE * (1 + 1e-6), ("stream", 1, "")),  # rounding in float32
        (WHOLE.bfloat16().float(), None),
        (WHOLE[0], ("stream", 1, "token 0")),
        (WHOLE[-1], ("stream", 1, "the last token")),
        (SEEN["value|0/0||logits"][-1:], ("logits", None, "the last token")),
        (torch.arange(TOKENS), ("positions", None, "")),
        *((torch.tensor(list(n)), None) for n in ((1, 2), range(3), range(2, 2 + TOKENS))),
        (OTHER, None),
        (torch.zeros(TOKENS, WIDTH), None),
        # Heads next to each other are one row.
        (WHOLE.reshape(TOKENS, 4, 4), ("stream", 1, "")),
        (WHOLE.reshape(1, TOKENS, 4, 4).transpose(1, 2), ("stream", 1, "")),
    ],
)
def test_a_value_is_identified_by_its_numbers(value, found):
    assert held(value) == found


def test_what_a_module_is_given_is_no_half_of_a_stream():
    seen = SEEN | {"value|0/0|model.layers.1.mlp|input": torch.ones(TOKENS, WIDTH)}
    assert identify(torch.ones(TOKENS, WIDTH), catalogue(seen, "model.layers")).kind == "mlp-input"


def test_a_norm_after_the_mlp_makes_the_half():
    normed = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(5))
    given = SEEN["clean|p0/s0/stream.1"] - normed
    place = "value|0/0|model.layers.1."
    seen = SEEN | {
        f"{place}post_feedforward_layernorm|output": normed,
        f"{place}pre_feedforward_layernorm|input": given,
    }
    known = catalogue(seen, "model.layers")
    assert identify(normed, known).kind == "mlp"
    assert identify(given, known).kind == "residual"


def edited():
    """The same of a trace that adds to the stream after layer 1."""
    seen = dict(SEEN)
    change = torch.randn(TOKENS, WIDTH, generator=torch.Generator().manual_seed(1))
    for layer in range(LAYERS):
        stream = seen[f"clean|p0/s0/stream.{layer}"]
        branch = seen[f"value|0/0|model.layers.{layer}.mlp|output"]
        further = change * layer if layer > 1 else 0 * change
        seen[f"natural|p0/s0/stream.{layer}"] = stream + further
        seen[f"written|0/0|model.layers.{layer}.mlp|output"] = branch + further / 2
        seen[f"layers|p0/s0/stream.{layer}"] = stream + (change if layer == 1 else further)
    return seen


def test_half_of_a_stream_is_known_after_a_write():
    seen = edited()
    known = catalogue(seen, "model.layers")
    later = identify(seen["written|0/0|model.layers.2.mlp|output"], known)
    assert (later.kind, later.layer) == ("mlp", 2) and "without what" not in later.words
    clean = identify(seen["value|0/0|model.layers.2.mlp|output"], known)
    assert clean.words.endswith("without what the trace writes")


def test_a_norms_output_is_called_so_and_not_what_it_is_given_to():
    rows = torch.ones(TOKENS, WIDTH)
    place = "value|0/0|model.layers.1."
    seen = SEEN | {f"{place}mlp.gate_proj|input": rows, f"{place}some_layernorm|output": rows}
    assert identify(rows, catalogue(seen, "model.layers")).kind == "norm-output"


def test_a_write_in_a_later_run_of_the_same_prompt_is_a_write():
    rows = [SEEN[f"clean|p0/s0/stream.{layer}"] for layer in range(LAYERS)]
    later = {f"layers|p1/s0/stream.{layer}": one + 1 for layer, one in enumerate(rows)}
    # What it would be without the write is kept once, under the first one's number.
    later |= {f"natural|p1/s0/stream.{layer}": one for layer, one in enumerate(rows)}
    assert not written(SEEN)
    assert written(SEEN | later | {"layers|p1/s0/ids": SEEN["layers|p0/s0/ids"]})


def test_the_mean_over_the_tokens_of_a_layer_is_known_as_that():
    rows = {layer: torch.randn(6, 16) for layer in (1, 2)}
    known = [Known("stream", f"the stream after layer {n}", r, n) for n, r in rows.items()]
    held = identify(rows[1].mean(dim=0), known)
    assert held is not None and (held.kind, held.layer) == ("stream", 1)
    assert held.what() == "the stream after layer 1 of all tokens, averaged"
    assert identify(rows[1].sum(dim=0), known) is None
