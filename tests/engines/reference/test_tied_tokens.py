"""Which tokens a router has two experts for: asked of the block itself, and seen by nobody else."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import Linear, Module, ModuleList, Parameter

from conformance.engines.reference.engine import places
from conformance.engines.reference.model import PromptRun
from conformance.engines.reference.router_ties import blocks, router_ties

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
    assert [layer for layer, _ in found.values()] == [0]
    seen: list[int] = []
    steps: list[dict[int, Tensor]] = []
    with router_ties(model, found, steps):
        handle = model.layers[0].gate.register_forward_hook(lambda *_: seen.append(1))
        usual = model(value)
        model(value[:1])
        handle.remove()
    assert [step[0].tolist() for step in steps] == [[False, True, False, True], [False]]
    assert len(seen) == 2, "others saw that the block was asked again"
    assert torch.equal(model(value), usual)


def test_a_model_without_experts_is_not_asked() -> None:
    steps: list[dict[int, Tensor]] = []
    model = Linear(WIDTH, WIDTH)
    with router_ties(model, blocks([model]), steps):
        model(torch.randn(2, WIDTH))
    assert steps == []


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
