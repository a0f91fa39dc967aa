"""Faults between clients: what they do, how they reach an engine's processes, where they are."""

from __future__ import annotations

import pickle
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from conformance.engines.vllm.inside import worker_rpc
from conformance.inputs import manifest
from conformance.selftest import command, run
from conformance.selftest.fault import CLIENTS, find
from conformance.selftest.faults import FAULTS
from conformance.selftest.injecting import hooks, switch

SENT = [fault for fault in FAULTS.values() if set(fault.backends) & set(CLIENTS)]
KNOWN = manifest.load(Path(__file__).parents[2] / "models.yaml")


@pytest.fixture(autouse=True)
def _off():
    yield
    switch.disarm()


def armed(name: str) -> switch.Armed:
    fault = switch.Armed(find(FAULTS, name), 4, model=switch.Traced("model.layers", "single"))
    switch.arm(fault)
    return fault


@pytest.fixture
def batcher(monkeypatch: pytest.MonkeyPatch) -> Any:
    class VLLMBatcher:
        total = 6

        def narrow(self, value: Any, group: Any) -> Any:
            return value if group is None else value[group[0] : sum(group)]

    module = ModuleType("nnsight.modeling.vllm.batching")
    module.VLLMBatcher = VLLMBatcher  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hooks._spans()
    return VLLMBatcher()


@pytest.mark.parametrize(
    ("group", "own", "wrong"),
    [
        ([0, 2], [0, 1], [1, 2]),
        ([2, 2], [2, 3], [3, 4]),
        ([4, 2], [4, 5], [3, 4]),
        ([0, 6], [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),  # nobody is beside it
        (None, [0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4, 5]),
    ],
)
def test_one_row_of_each_request_is_a_neighbours_where_there_is_one(batcher, group, own, wrong):
    rows = list(range(6))
    assert batcher.narrow(rows, group) == own
    armed("client-rows")
    assert batcher.narrow(rows, group) == wrong


def test_each_client_gets_what_the_one_before_it_saved_by_the_same_names(monkeypatch):
    class NNsightGPUModelRunner:
        def collect_nnsight(self, *entries: Any) -> bytes | None:
            self.sent = pickle.dumps(dict(entries)) if entries else None
            return self.sent

    module = ModuleType("nnsight.modeling.vllm.model_runners.GPUModelRunner")
    module.NNsightGPUModelRunner = NNsightGPUModelRunner
    monkeypatch.setitem(sys.modules, module.__name__, module)
    hooks._collected()
    runner = NNsightGPUModelRunner()

    def collected(request: str, **saves: int) -> Any:
        return pickle.loads(runner.collect_nnsight((request, {"saves": saves})))[request]["saves"]

    assert [collected(name, saved=at) for at, name in enumerate("ab")] == [
        {"saved": 0},
        {"saved": 1},
    ]
    assert runner.collect_nnsight(("a", {"saves": {}})) is runner.sent  # untouched
    armed("client-saves")
    found = [collected(name, saved=at) for at, name in enumerate("abc")]
    assert found == [{"saved": 0}, {"saved": 0}, {"saved": 1}]
    assert collected("d", alone=4) == {"alone": 4}  # not what others saved by other names
    assert collected("e") == {}
    assert collected("f", saved=9) == {"saved": 2}
    assert runner.collect_nnsight() is None


@pytest.mark.parametrize("name", ["edit-outlives.middle", "client-outlives.middle"])
def test_an_edit_outlives_the_forward_in_which_a_block_wrote(name: str) -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp = nn.Linear(2, 2)

    model = nn.Module()
    model.layers = nn.ModuleList(Layer() for _ in range(4))
    assert hooks.hook_model(armed(name), model) == ""
    branch, rows = model.layers[2].mlp, torch.ones(3, 2)
    assert branch(rows).all()
    assert switch.written("model.layers.1.output") == 1  # another layer
    assert switch.written("model.layers.2.mlp.output") is None
    assert branch(rows).all()
    assert switch.written("model.layers.2.output") == 2
    assert not branch(rows).any()
    switch.disarm()
    assert branch(rows).all()
    assert switch.written("model.layers.2.output") is None  # with no fault nothing is noted


def test_a_process_that_takes_no_function_is_told_by_the_name_of_a_method(monkeypatch):
    monkeypatch.setattr(hooks._POINTS, "installed", True)
    monkeypatch.setattr(worker_rpc, "pipeline_place", lambda: (0, 1))
    monkeypatch.delattr(worker_rpc.HarnessRPC, hooks.TOLD, raising=False)
    hooks._told_by_name()
    worker = worker_rpc.HarnessRPC()
    worker.model_runner = SimpleNamespace(get_model=lambda: None)
    # As values arrive from another process: no tuple, no record.
    assert getattr(worker, hooks.TOLD)("zeros.middle", 4, [0.1], "model.layers", "dual") == ""
    assert switch.layer_of("model.layers.2.output") == 2
    assert switch.layout() == "dual"
    getattr(worker, hooks.TOLD)("", 4, [], "", "")
    assert switch.layer_of("model.layers.2.output") is None
    monkeypatch.delattr(worker_rpc.HarnessRPC, hooks.TOLD)


def planned(models: tuple[str, ...], *names: str, general: Any) -> run.Plan:
    return run.plan(
        [FAULTS[name] for name in names],
        [model for model in KNOWN.models if model.id in models],
        command.default_backends(KNOWN.backends),
        general=general,
    )


def test_each_kind_of_fault_between_clients_is_in_the_whole_selftest_of_one_tiny_model() -> None:
    names = [fault.id for fault in SENT]
    assert len(names) == 3
    plan = planned(command.MODELS, *names, general=command.MODELS)
    injected = {(one.cells[0].model, one.backend.id, one.variant.fault.id) for one in plan.faulty}
    assert injected == {("llama", backend, name) for backend in CLIENTS for name in names}
    named = planned(("gpt2",), *names, general=None)  # by somebody who asks for that model
    assert {one.backend.id for one in named.faulty} == set(CLIENTS)


def test_beside_clients_only_what_they_send_runs_without_a_fault() -> None:
    plan = planned(("llama",), "client-rows", "zeros", general=None)
    fault_free = {(cell.backend, cell.scenario) for cell in plan.fault_free}
    traced = {(name, "read_all") for name in ("hf", "vllm-pp1", "vllm-pp2")}
    assert fault_free == traced | {(name, "tenants") for name in CLIENTS}


def test_a_column_in_which_nothing_runs_is_none_of_a_selftest() -> None:
    plan = planned(("llama",), "zeros", general=None)
    assert {backend.id for backend in plan.backends} == {"hf", "vllm-pp1", "vllm-pp2"}
