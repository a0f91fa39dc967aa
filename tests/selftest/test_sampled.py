"""Second best ids: where in a generation they are taken, and that nothing of it is left after."""

from __future__ import annotations

import sys
from types import ModuleType

import torch
from torch import nn

from conformance.selftest.fault import Moment
from conformance.selftest.faults.sampled import runner_up

LOGITS = torch.tensor([[0.0, 3.0, 2.0], [5.0, 1.0, 4.0]])


class Generating(nn.Module):
    """What of transformers' models the fault takes hold of."""

    def generate(self) -> None: ...

    def _get_logits_processor(self) -> list[object]:
        return []


def test_transformers_takes_the_second_best_in_one_step_and_the_best_after_it():
    model = Generating()
    [handle] = runner_up(model, Moment(None, 1))
    [weigh] = model._get_logits_processor()
    chosen = [weigh(None, LOGITS).argmax(-1).tolist() for _ in range(3)]
    assert chosen == [[1, 0], [2, 2], [1, 0]]
    handle.remove()
    assert model._get_logits_processor() == []


def test_vllm_samples_the_second_best_and_is_as_it_was_afterwards(monkeypatch):
    class Sampler:
        @staticmethod
        def greedy_sample(logits: torch.Tensor) -> torch.Tensor:
            return logits.argmax(-1)

    module = ModuleType("vllm.v1.sample.sampler")
    module.Sampler = Sampler
    monkeypatch.setitem(sys.modules, module.__name__, module)
    unchanged = Sampler.__dict__["greedy_sample"]
    [handle] = runner_up(nn.Linear(1, 1), Moment(None, 0))
    chosen = [Sampler().greedy_sample(LOGITS).tolist() for _ in range(2)]
    assert chosen == [[2, 2], [1, 0]]
    handle.remove()
    assert Sampler.__dict__["greedy_sample"] is unchanged
