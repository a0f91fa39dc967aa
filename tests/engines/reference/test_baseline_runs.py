"""Every way of the ensemble computes the same thing: only rounding tells them apart."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers

from conformance.engines.reference.ensemble import REFERENCE_RUN, EnsembleMember, members
from conformance.engines.reference.expert_choice import routers
from conformance.engines.reference.forwards import (
    in_halves,
    is_experts,
    other_forwards,
    rms_norm,
    rounded_once,
)
from conformance.engines.reference.model import ReferenceModel
from conformance.engines.tree import exchanged, layer_path
from conformance.judge.cell.reference import FEWEST_BASELINE_RUNS
from conformance.spec.generated_tokens import in_precision
from conformance.spec.records import Precision
from tests.engines import tiny

#: Norms that multiply with their weight, and norms that multiply with one more.
NORMED = {"llama": 0.0, "gemma2": 1.0, "qwen3_next": 1.0}


def logits(model: Any) -> torch.Tensor:
    with torch.inference_mode():
        return model(torch.arange(1, 9)[None]).logits[0]


@pytest.fixture(params=tiny.WITH_EXPERTS)
def model(request: Any) -> Any:
    return tiny.build(request.param, 2, rough=True)


def experts(model: Any) -> list[Any]:
    return [module for module in model.modules() if is_experts(module)]


@pytest.mark.parametrize("way", [rounded_once, in_halves])
def test_experts_computed_otherwise_are_the_same_experts(model: Any, way: Any) -> None:
    reference = logits(model)
    found = experts(model)
    assert len(found) == 2
    with exchanged({module: way(module) for module in found}):
        other = logits(model)
    assert torch.allclose(other, reference, atol=1e-5)
    assert torch.equal(logits(model), reference)


def test_they_round_otherwise_in_bf16(model: Any) -> None:
    low = model.to(torch.bfloat16)
    plain = logits(low)
    with exchanged(other_forwards(low, split=False, fused=True)):
        once = logits(low)
    with exchanged(other_forwards(low, split=True, fused=False)):
        halves = logits(low)
    assert not other_forwards(low, split=False, fused=False)
    projections = other_forwards(low, split=True, fused=False).keys() - experts(low)
    assert projections and not projections & other_forwards(low, split=False, fused=True).keys()
    assert not torch.equal(plain, once)
    assert not torch.equal(plain, halves)
    assert torch.equal(logits(low), plain)


def test_a_half_that_is_left_out_is_seen(model: Any) -> None:
    """The negative control of the two above."""
    reference = logits(model)

    def first_half(module: Any) -> Any:
        whole = in_halves(module)
        return lambda *args: whole(*args) / 2

    with exchanged({module: first_half(module) for module in experts(model)}):
        assert not torch.allclose(logits(model), reference, atol=1e-2)


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


EAGER = [member for member in members(sdpa=False) if member.dtype is torch.bfloat16]


@pytest.mark.parametrize("member", EAGER, ids=lambda member: member.name)
def test_a_router_is_given_something_else_and_its_experts_are_not(
    model: Any, member: EnsembleMember
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


@pytest.mark.parametrize("family", ["llama", "gpt2", "bloom", "opt"])
@pytest.mark.parametrize("pad", [0, 4])
def test_each_row_of_all_logits_is_what_the_prompt_up_to_there_gives(family: str, pad: int) -> None:
    module = tiny.build(family, 2)
    member = replace(REFERENCE_RUN, pad=pad)
    model = ReferenceModel(module, tiny.tokenized, member, layer_path(module, 2), ())
    ids = tiny.tokenized("prompt").input_ids
    rows = model.every_logits("prompt")
    assert rows.shape == (len(ids), tiny.VOCABULARY)
    with torch.no_grad():
        for end in range(1, len(ids) + 1):
            alone = module(input_ids=torch.tensor([ids[:end]])).logits[0, -1]
            assert torch.allclose(rows[end - 1], alone, atol=1e-5), end


def test_every_precision_is_computed_in_several_ways() -> None:
    for sdpa in (True, False):
        found = members(sdpa=sdpa)
        for precision in Precision:
            ways = [one for one in found if in_precision(one.name, precision)]
            assert len(ways) >= FEWEST_BASELINE_RUNS[precision]
            assert {one.dtype for one in ways} == {getattr(torch, precision.dtype)}
            assert len({replace(one, name="") for one in ways}) == len(ways)
        assert sdpa or {one.attention for one in found} == {"eager"}
