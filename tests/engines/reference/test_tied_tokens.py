"""Ties of routers: found without being observed, and decided as a candidate decided them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import Linear

from conformance.engines.reference.candidates_experts import along_experts
from conformance.engines.reference.engine import places
from conformance.engines.reference.ensemble import REFERENCE_RUN
from conformance.engines.reference.expert_choice import Routing, blocks, routed
from conformance.engines.reference.model import PromptRun, ReferenceModel
from tests.engines import tiny

IDS, TIED = (5, 9, 11, 3, 7, 2), 3


@pytest.fixture(scope="module")
def mixture() -> Any:
    """The router of layer 1 scores two experts equally for one token."""
    model = tiny.build("mixtral", num_experts_per_tok=1)
    router, inputs = model.model.layers[1].mlp.gate, []
    handle = router.register_forward_pre_hook(lambda _, args: inputs.append(args[0]))
    with torch.no_grad():
        model(torch.tensor([IDS]))
        handle.remove()
        token = inputs[0].reshape(-1, tiny.WIDTH)[TIED]
        best, other = (router.weight @ token).sort(descending=True).indices[:2]
        short = (router.weight[best] - router.weight[other]) @ token
        router.weight[other] += token * short / (token @ token)
    return model


def test_a_tied_token_is_found_and_nobody_sees_that_the_block_is_asked_again(mixture) -> None:
    model, seen = reference(mixture, {}), []
    handle = mixture.model.layers[1].mlp.gate.register_forward_hook(lambda *_: seen.append(1))
    run = model.run(IDS)
    handle.remove()
    tied = {layer: tokens.nonzero().flatten().tolist() for layer, tokens in run.ties[0].items()}
    assert tied == {0: [], 1: [TIED], 2: []}
    assert len(seen) == 1
    again = reference(mixture, {}).run(IDS)
    assert torch.equal(again.logits[0], run.logits[0])


def test_a_model_without_experts_is_not_asked() -> None:
    routing = Routing(find_ties=True)
    model = Linear(16, 16)
    with routed(model, blocks([model]), routing):
        model(torch.randn(2, 16))
    assert routing.ties == []


def reference(module, decisions, others=None) -> ReferenceModel:
    norms = (1.0,) * len(module.model.layers)
    member = REFERENCE_RUN if others is None else replace(REFERENCE_RUN, name="float32_other")
    return ReferenceModel(module, None, member, "model.layers", norms, others, anew=decisions)


def values_of(run: PromptRun) -> dict[str, Tensor]:
    streams = {f"p0/s0/stream.{layer}": value for layer, value in run.stream[0].items()}
    return streams | {"p0/s0/logits": run.logits[0]}


@pytest.fixture
def other(mixture) -> dict[str, Tensor]:
    """What an engine computes that decides the tie the other way."""

    def exchange(_, args):
        value, experts, weights = args
        scores = mixture.model.layers[1].mlp.gate.weight @ value[TIED]
        first, second = scores.sort(descending=True).indices[:2]
        experts = experts.clone()
        experts[TIED, 0] = second if experts[TIED, 0] == first else first
        return value, experts, weights

    handle = mixture.model.layers[1].mlp.experts.register_forward_pre_hook(exchange)
    try:
        return values_of(reference(mixture, {}).run(IDS))
    finally:
        handle.remove()


def along(module, observed: dict[str, Tensor]):
    def run(decisions):
        model = reference(module, decisions)
        return model, values_of(model.run(IDS))

    return along_experts(observed, run, allowed=1e-5)


def test_the_reference_takes_the_experts_that_a_candidate_took(mixture, other) -> None:
    model, found = along(mixture, other)
    for site, value in other.items():
        torch.testing.assert_close(found[site], value, rtol=1e-4, atol=1e-5)
    usual = values_of(reference(mixture, {}).run(IDS))
    assert not torch.allclose(usual["p0/s0/logits"], other["p0/s0/logits"], atol=1e-3)
    # A baseline run takes the same experts, whatever it would choose.
    own = values_of(reference(mixture, {}, model).run(IDS))
    torch.testing.assert_close(own["p0/s0/logits"], found["p0/s0/logits"])


def test_a_row_that_no_tie_explains_stays_off(mixture, other) -> None:
    other["p0/s0/stream.1"] = other["p0/s0/stream.1"] + 0.1
    _, found = along(mixture, other)
    usual = values_of(reference(mixture, {}).run(IDS))
    assert not torch.allclose(found["p0/s0/stream.1"], other["p0/s0/stream.1"], atol=1e-2)
    assert torch.equal(found["p0/s0/stream.0"], usual["p0/s0/stream.0"])


class OnGPU:
    """A tensor on a GPU, which torch does not compare with one on the CPU."""

    def __init__(self, values: Tensor) -> None:
        self.values = values

    def cpu(self) -> Tensor:
        return self.values


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


@pytest.mark.parametrize("name", ["stream.0", "logits"])
def test_the_runs_of_a_result_may_be_on_a_gpu(name) -> None:
    values = torch.ones(2, 4)
    run = run_of([1, 2], OnGPU(values), OnGPU(values))
    assert places({f"p0/s0/{name}": values}, [run], [()]) == {0: {(1, 2)}}
