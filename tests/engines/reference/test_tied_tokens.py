"""Ties of routers: found without being observed, and decided as a candidate decided them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, Parameter
from transformers import MixtralConfig, MixtralForCausalLM

from conformance.engines.reference.at_once import TestedGenerations as Tested
from conformance.engines.reference.candidates_experts import along_experts
from conformance.engines.reference.engine import places
from conformance.engines.reference.ensemble import REFERENCE_RUN
from conformance.engines.reference.expert_choice import Routing, blocks, routed
from conformance.engines.reference.model import Others, PromptRun, ReferenceModel

WIDTH, EXPERTS = 16, 4


class Experts(Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate_up_proj = Parameter(torch.randn(EXPERTS, 2 * WIDTH, WIDTH))
        self.down_proj = Parameter(torch.randn(EXPERTS, WIDTH, WIDTH))

    def forward(self, value: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        return value * weights.sum(dim=-1, keepdim=True)


class Block(Module):
    def __init__(self) -> None:
        super().__init__()
        self.gate = Linear(WIDTH, EXPERTS, bias=False)
        self.experts = Experts()

    def forward(self, value: Tensor) -> Tensor:
        weights, index = self.gate(value).topk(1, dim=-1)
        computed: Tensor = self.experts(value, index, weights)
        return computed


class Model(Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = ModuleList([Block(), Linear(WIDTH, WIDTH)])

    def forward(self, value: Tensor) -> Tensor:
        for layer in self.layers:
            value = layer(value)
        return value


def between_two(model: Model, share: float) -> Tensor:
    """A token whose two likeliest experts are so far apart, as a share of its length."""
    first, second = model.layers[0].gate.weight[:2]
    across = torch.nn.functional.normalize(first - second, dim=0)
    both = first + second
    middle = both - (both @ across) * across
    return middle + share * middle.norm() * across


@torch.no_grad()
def test_a_token_within_a_rounding_of_two_experts_is_tied() -> None:
    torch.manual_seed(0)
    model = Model()
    model.layers[0].gate.weight[2:] *= 1e-3
    value = torch.stack([between_two(model, share) for share in (1e-2, 1e-8, -1e-2, -1e-8)])
    found = blocks(list(model.layers))
    assert [block.layer for block in found.values()] == [0]
    seen: list[int] = []
    routing = Routing(find_ties=True)
    with routed(model, found, routing):
        handle = model.layers[0].gate.register_forward_hook(lambda *_: seen.append(1))
        usual = model(value)
        model(value[:1])
        handle.remove()
    assert [step[0].tolist() for step in routing.ties] == [[False, True, False, True], [False]]
    assert len(seen) == 2, "others saw that the block was asked again"
    assert torch.equal(model(value), usual)


def test_a_model_without_experts_is_not_asked() -> None:
    routing = Routing(find_ties=True)
    model = Linear(WIDTH, WIDTH)
    with routed(model, blocks([model]), routing):
        model(torch.randn(2, WIDTH))
    assert routing.ties == []


IDS, TIED = (5, 9, 11, 3, 7, 2), 3


@pytest.fixture(scope="module")
def mixture() -> MixtralForCausalLM:
    """The router of layer 1 scores two experts equally for one token."""
    torch.manual_seed(0)
    config = MixtralConfig(
        vocab_size=32,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=1,
        head_dim=8,
        initializer_range=0.5,
    )
    model = MixtralForCausalLM(config).eval()
    router, inputs = model.model.layers[1].mlp.gate, []
    handle = router.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(torch.tensor([IDS]))
        handle.remove()
        token = inputs[0].reshape(-1, 16)[TIED]
        best, other = (router.weight @ token).sort(descending=True).indices[:2]
        short = (router.weight[best] - router.weight[other]) @ token
        router.weight[other] += token * short / (token @ token)
    return model


def test_one_token_is_tied(mixture) -> None:
    model = reference(mixture, {})
    model.run(IDS)
    ties = model.runs[0].ties[0]
    assert {layer: tokens.nonzero().flatten().tolist() for layer, tokens in ties.items()} == {
        0: [],
        1: [TIED],
        2: [],
    }


def reference(module, decisions, others=None) -> ReferenceModel:
    norms = (1.0,) * len(module.model.layers)
    member = REFERENCE_RUN if others is None else replace(REFERENCE_RUN, name="float32_other")
    return ReferenceModel(module, None, member, "model.layers", norms, others, anew=decisions)


def values_of(run: PromptRun) -> dict[str, Tensor]:
    streams = {f"p0/s0/stream.{layer}": value for layer, value in run.stream[0].items()}
    return streams | {"p0/s0/logits": run.logits[0]}


def with_other_experts(module) -> dict[str, Tensor]:
    """What an engine computes that decides the tie the other way."""

    def exchange(_, args):
        value, experts, weights = args
        scores = module.model.layers[1].mlp.gate.weight @ value[TIED]
        first, second = scores.sort(descending=True).indices[:2]
        experts = experts.clone()
        experts[TIED, 0] = second if experts[TIED, 0] == first else first
        return value, experts, weights

    handle = module.model.layers[1].mlp.experts.register_forward_pre_hook(exchange)
    try:
        return values_of(reference(module, {}).run(IDS))
    finally:
        handle.remove()


def along(module, observed: dict[str, Tensor]):
    def run(decisions):
        model = reference(module, decisions)
        return model, values_of(model.run(IDS))

    return along_experts(observed, run, allowed=1e-5)


def test_the_reference_takes_the_experts_that_a_candidate_took(mixture) -> None:
    observed = with_other_experts(mixture)
    model, reference_values = along(mixture, observed)
    for site, value in observed.items():
        torch.testing.assert_close(reference_values[site], value, rtol=1e-4, atol=1e-5)
    usual = values_of(reference(mixture, {}).run(IDS))
    assert not torch.allclose(usual["p0/s0/logits"], observed["p0/s0/logits"], atol=1e-3)
    # A baseline run takes the same experts, whatever it would choose.
    others = Others(model, Tested(1e-5))
    own = values_of(reference(mixture, {}, others).run(IDS))
    torch.testing.assert_close(own["p0/s0/logits"], reference_values["p0/s0/logits"])


def test_a_row_that_no_tie_explains_stays_off(mixture) -> None:
    observed = with_other_experts(mixture)
    observed["p0/s0/stream.1"] = observed["p0/s0/stream.1"] + 0.1
    _, reference_values = along(mixture, observed)
    usual = values_of(reference(mixture, {}).run(IDS))
    assert not torch.allclose(
        reference_values["p0/s0/stream.1"], observed["p0/s0/stream.1"], atol=1e-2
    )
    assert torch.equal(reference_values["p0/s0/stream.0"], usual["p0/s0/stream.0"])


def run_of(ids: list[int], stream: Tensor, logits: Tensor) -> PromptRun:
    """A run of one step and one layer."""
    return PromptRun(stream=[{0: stream}], logits=[logits], ids=torch.tensor(ids))


def test_a_result_is_of_the_prompt_whose_streams_it_holds() -> None:
    """In any order, and where a layer was set to zero, so that all prompts have the same logits."""
    short, long = [1, 2], [1, 2, 3]
    same = torch.zeros(4)
    runs = [run_of(short, torch.ones(2, 4), same), run_of(long, torch.ones(3, 4), same)]
    prompts = [tuple(short), tuple(long)]
    turned = {"p0/s0/stream.0": torch.ones(3, 4), "p0/s0/logits": same, "p1/s0/logits": same}
    assert places(turned, runs, prompts) == {0: {tuple(long)}, 1: {tuple(long)}}
    assert places({"p0/s0/h": torch.ones(2, 4)}, runs, prompts) == {0: {tuple(short)}}


class OnGPU:
    """A tensor on a GPU, which torch does not compare with one on the CPU."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def cpu(self) -> Tensor:
        return self.values


@pytest.mark.parametrize("name", ["stream.0", "logits"])
def test_the_runs_of_a_result_may_be_on_a_gpu(name) -> None:
    ids, values = [1, 2], torch.ones(2, 4)
    run = run_of(ids, OnGPU(values), OnGPU(values))
    assert places({f"p0/s0/{name}": values}, [run], [()]) == {0: {tuple(ids)}}
