"""The branches of a layer are found by numbers in every layout of the matrix's models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from conformance.engines.reference.at_once import recorded_steps
from conformance.engines.reference.branches import Branches, collect_branch_values, find
from conformance.engines.reference.model import PromptRun
from conformance.engines.tree import follow, layer_path
from conformance.judge.cell.diagnosis.hypotheses import NoisyRows, Scene, branches
from conformance.spec.records import Site
from tests.engines import tiny

FAMILIES = ("llama", "gemma2", "gpt2", "opt", "gpt_neox", "phi3", "bloom")


def built(family: str) -> tuple[Any, list[Any]]:
    model = tiny.build(family)
    return model, list(follow(model, layer_path(model, 3)))


def forward(model: Any) -> Any:
    with torch.inference_mode():
        return model(input_ids=torch.arange(1, 8)[None])


def recorded(model: Any, layers: list[Any], found: Branches) -> PromptRun:
    run = PromptRun()
    streams = recorded_steps(model, layers, lambda n: [slice(n)], {}, run.stream, run.logits)
    with streams, found.recorded(model, layers, run.branches):
        forward(model)
    return run


@pytest.mark.parametrize("architecture", FAMILIES)
def test_the_branches_add_up_to_what_the_layer_adds(architecture: str) -> None:
    model, layers = built(architecture)
    found = find(model, layers, lambda: forward(model))
    run = recorded(model, layers, found)
    before = run.branches[0]["embedding"]
    for layer, after in run.stream[0].items():
        both = run.branches[0][f"attention.{layer}"] + run.branches[0][f"mlp.{layer}"]
        assert (before + both - after).norm() <= 1e-5 * after.norm()
        assert run.branches[0][f"normed.{layer}"].shape == after.shape
        before = after
    if architecture == "gemma2":
        cap = model.config.final_logit_softcapping
        capped = cap * torch.tanh(run.branches[0]["uncapped"] / cap)
        assert torch.allclose(capped, run.logits[0], atol=1e-5)
    else:
        assert "uncapped" not in run.branches[0]


def test_no_hook_is_left_behind() -> None:
    model, layers = built("llama")
    recorded(model, layers, find(model, layers, lambda: forward(model)))
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_a_layer_with_one_branch_has_none() -> None:
    model, layers = built("llama")
    for layer in layers:
        layer.mlp.forward = torch.zeros_like
        layer.self_attn.register_forward_hook(lambda m, a, out: (2 * out[0], *out[1:]))
        layer.register_forward_hook(lambda m, a, out: out * 1.5)
    found = find(model, layers, lambda: forward(model))
    assert not [name for name in found.modules if name.startswith(("mlp", "attention"))]


def test_they_are_kept_beside_the_observations_they_belong_to() -> None:
    model, layers = built("gpt2")
    run = recorded(model, layers, find(model, layers, lambda: forward(model)))
    stream = run.stream[0]
    kept = collect_branch_values(
        {
            "p0/s0/stream.1": stream[1],
            "p0/s0/stream.2": stream[2],
            "clean/p1/s0/other.0": stream[0],
            "edited/p0/s0/stream.1": stream[1],
            "p1/s0/stream.1": stream[1] + 1,
        },
        [run],
    )
    # Attention is left out where it can be computed: the stream before the layer is known.
    assert set(kept) == {
        *("p0/s0/mlp.1", "p0/s0/normed.1", "p0/s0/attention.1"),
        *("p0/s0/mlp.2", "p0/s0/normed.2", "p0/s0/embedding"),
        *("clean/p1/s0/mlp.0", "clean/p1/s0/normed.0", "clean/p1/s0/embedding"),
    }
    off = (kept["p0/s0/mlp.2"].float() - run.branches[0]["mlp.2"]).norm()
    assert off < 2.5e-4 * run.branches[0]["mlp.2"].norm()


def test_attention_is_what_the_others_leave() -> None:
    torch.manual_seed(5)
    before, attention, mlp = torch.randn(3, 6, 32, dtype=torch.float64)
    noise = torch.full((6,), 1e-3, dtype=torch.float64)
    here = Site("stream", layer=2)
    known = {
        Site("stream", layer=1): NoisyRows(before, noise),
        here: NoisyRows(before + attention + mlp, noise),
    }
    scene = Scene(here, attention, known, {Site("mlp", layer=2): mlp})
    made = {one.kind: one.rows for one in branches(scene)}
    assert torch.allclose(made["attention-only"], attention)
    assert torch.allclose(made["mlp-missing"], before + attention)
