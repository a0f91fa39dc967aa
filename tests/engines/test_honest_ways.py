"""Every way of the ensemble computes the same thing: only rounding, and ties, tell them apart."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

transformers = pytest.importorskip("transformers")

from conformance.engines.reference.ensemble import (  # noqa: E402
    EAGER_ENSEMBLE,
    Member,
    Ties,
    split_reductions,
    with_ties,
)
from conformance.engines.reference.experts import in_halves, is_experts, rounded_once  # noqa: E402
from conformance.engines.reference.fused import fused, rms_norm  # noqa: E402
from conformance.engines.reference.model import Changes, ReferenceModel, Run  # noqa: E402
from conformance.engines.reference.patched_forward import exchanged  # noqa: E402
from conformance.engines.reference.routing import inputs, noise, other_side, routers  # noqa: E402

SIZES: dict[str, dict[str, Any]] = {
    "mixtral": {"intermediate_size": 24, "num_local_experts": 4, "num_key_value_heads": 2},
    "qwen3_moe": {
        "moe_intermediate_size": 24,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
    },
    "gpt_oss": {
        "intermediate_size": 24,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "num_key_value_heads": 2,
        "head_dim": 8,
    },
}

#: Norms that multiply with their weight, and norms that multiply with one more.
NORMED = {"llama": 0.0, "gemma2": 1.0, "qwen3_next": 1.0}


def built(architecture: str) -> Any:
    torch.manual_seed(3)
    config = transformers.CONFIG_MAPPING[architecture](
        vocab_size=40,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        initializer_range=0.3,
        pad_token_id=0,
        **SIZES[architecture],
    )
    model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    for value in model.parameters():
        if value.ndim < 3:
            value.data.add_(torch.randn_like(value), alpha=0.1)
    return model.float().eval()


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.arange(1, 9)[None]).logits[0]


@pytest.fixture(params=SIZES)
def model(request: Any) -> Any:
    return built(request.param)


def experts(model: Any) -> list[Any]:
    return [module for module in model.modules() if is_experts(module)]


@pytest.mark.parametrize("way", [rounded_once, in_halves])
def test_experts_computed_otherwise_are_the_same_experts(model: Any, way: Any) -> None:
    truth = logits(model)
    found = experts(model)
    assert len(found) == 2
    with exchanged({module: way(module) for module in found}):
        other = logits(model)
    assert torch.allclose(other, truth, atol=1e-5)
    assert torch.equal(logits(model), truth)


def test_they_round_otherwise_in_bf16(model: Any) -> None:
    low = model.to(torch.bfloat16)
    plain = logits(low)
    with fused(low):
        once = logits(low)
    with split_reductions(low):
        halves = logits(low)
    assert not torch.equal(plain, once)
    assert not torch.equal(plain, halves)
    assert torch.equal(logits(low), plain)


def test_a_half_that_is_left_out_is_seen(model: Any) -> None:
    """The negative control of the two above."""
    truth = logits(model)

    def first_half(module: Any) -> Any:
        whole = in_halves(module)
        return lambda *args: whole(*args) / 2

    with exchanged({module: first_half(module) for module in experts(model)}):
        assert not torch.allclose(logits(model), truth, atol=1e-2)


@pytest.mark.parametrize(("architecture", "offset"), NORMED.items())
def test_the_formula_of_a_norm_is_measured(architecture: str, offset: float) -> None:
    config = transformers.CONFIG_MAPPING[architecture]()
    kind = next(
        kind
        for name, kind in vars(module_of(config)).items()
        if name.endswith("RMSNorm") and isinstance(kind, type)
    )
    norm = kind(16)
    norm.weight.data = torch.randn(16)
    value = torch.randn(3, 16)
    found = rms_norm(norm)
    assert found is not None
    assert torch.allclose(found(value), norm(value), atol=1e-5)
    plain = value * (value.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    assert torch.allclose(found(value), plain * (offset + norm.weight), atol=1e-4)


def module_of(config: Any) -> Any:
    import importlib

    name = type(config).__module__.replace("configuration_", "modeling_")
    return importlib.import_module(name)


def test_a_norm_of_another_formula_is_left_alone() -> None:
    class OddRMSNorm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.randn(16))

        def forward(self, value: torch.Tensor) -> torch.Tensor:
            return value * self.weight

    assert rms_norm(OddRMSNorm()) is None


def choices(model: Any, tokens: torch.Tensor, size: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Which experts the first router chooses for these rows, as it is and on the other side."""
    [first, *_] = routers(model)
    sizes = [size] * len(routers(model))
    with torch.inference_mode():
        own = ids(first(tokens))
        with other_side(model, sizes):
            other = ids(first(tokens))
    return own, other


def ids(output: Any) -> torch.Tensor:
    [found] = [part for part in output if not part.is_floating_point()]
    return found.sort(-1).values


def test_only_ties_are_decided_otherwise(model: Any) -> None:
    """Rows where the second and third expert are almost equal, and rows where they are not."""
    [first, *_] = routers(model)
    bias = getattr(first, "bias", None)
    if bias is not None:
        bias.data.zero_()
    rows = torch.randn(3000, 32)
    scores = (rows @ first.weight.T).sort(-1, descending=True).values
    margin = (scores[:, 1] - scores[:, 2]).detach()
    own, other = choices(model, rows, 0.01)
    changed = (own != other).any(-1)
    assert changed[margin < 0.005].float().mean() > 0.9
    assert not changed[margin > 1].any()
    assert changed.any()
    assert not changed.all()


def test_without_noise_nothing_is_a_tie(model: Any) -> None:
    truth = logits(model)
    with other_side(model, [0.0] * len(routers(model))):
        assert torch.equal(logits(model), truth)


def test_the_noise_of_a_router_is_that_of_its_input(model: Any) -> None:
    truth = inputs(model, lambda: logits(model))
    assert [each.shape for each in truth] == [(8, 32)] * 2
    assert noise(truth, truth) == (0.0, 0.0)
    off = [each * 1.25 for each in truth]
    assert noise(truth, off) == pytest.approx((0.25, 0.25))


def test_a_router_keeps_its_side_where_it_is_told_to(model: Any) -> None:
    rows = torch.randn(3000, 32)
    [first, *_] = routers(model)
    own, other = choices(model, rows, 0.01)
    assert not torch.equal(own, other)
    with other_side(model, [0.01] * len(routers(model)), lambda _: False):
        assert torch.equal(ids(first(rows)), own)


@pytest.mark.parametrize("member", EAGER_ENSEMBLE, ids=lambda member: member.name)
def test_a_router_is_given_something_else_and_its_experts_are_not(
    model: Any, member: Member
) -> None:
    reference = ReferenceModel(model.to(member.dtype), None, member, "model.layers", ())
    vector = torch.randn(32).bfloat16()
    prompt = tuple(range(1, 9))
    clean = reference.run(prompt)
    seen = reference.run(prompt, given={1: vector}, parts=("router", "mlp_input"))
    alike = routers(model)[1](vector.to(member.dtype)[None])
    scores = next(part for part in alike if part.is_floating_point())
    assert torch.equal(seen.parts[0]["router"][1], scores.expand(len(prompt), -1))
    assert len(seen.parts[0]["router"][0].unique(dim=0)) == len(prompt)
    assert len(seen.parts[0]["mlp_input"][1].unique(dim=0)) == len(prompt)
    assert torch.equal(seen.stream[0][0], clean.stream[0][0])
    assert not torch.equal(seen.stream[0][1], clean.stream[0][1])
    assert torch.equal(reference.run(prompt).stream[0][1], clean.stream[0][1])


def test_half_of_the_ensemble_takes_the_other_side() -> None:
    whole = with_ties(EAGER_ENSEMBLE)
    assert len({member.name for member in whole}) == len(whole) >= 8
    assert sum(member.ties is not Ties.KEPT for member in whole) * 2 == len(whole)


@pytest.mark.parametrize(
    ("ties", "sides"),
    [
        (Ties.OTHER, {"": True, "clean": True, "until": True, "after": True, "step": True}),
        (
            Ties.OTHER_AFTER_WRITE,
            {"": True, "clean": False, "until": False, "after": True, "step": True},
        ),
        (
            Ties.OTHER_UNTIL_WRITE,
            {"": True, "clean": True, "until": True, "after": False, "step": False},
        ),
    ],
)
def test_after_a_write_the_two_runs_may_be_on_different_sides(
    model: Any, ties: Ties, sides: dict[str, bool]
) -> None:
    """Without a twin, in its clean run, up to the write, after it, and in a later step."""
    member = replace(EAGER_ENSEMBLE[0], ties=ties)
    reference = ReferenceModel(model, None, member, "model.layers", ())
    first, second = routers(model)
    write = Changes({0: lambda stream, _: stream})

    def taken(twin: str, changes: Changes, router: Any, steps: int = 1) -> bool:
        reference.twin = twin
        return reference._takes_other_side(Run(stream=[{}] * steps), changes, router)

    assert {
        "": taken("", Changes(), second),
        "clean": taken("clean", Changes(), second),
        "until": taken("edited", write, first),
        "after": taken("edited", write, second),
        "step": taken("edited", write, first, steps=2),
    } == sides
