"""What passes a hook point, with a fault on and with none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from conformance.engines.vllm.inside import worker_rpc
from conformance.selftest.fault import SKIPPED, Point, find
from conformance.selftest.faults import FAULTS
from conformance.selftest.injecting import hooks, switch


@pytest.fixture(autouse=True)
def _off():
    yield
    switch.disarm()


def armed(name: str, layers: int = 4) -> None:
    switch.arm(switch.Armed(find(FAULTS, name), layers))


def test_with_no_fault_a_point_hands_through_the_very_object():
    value = torch.ones(3)
    assert switch.passes(Point.SERVED, value, 2) is value


def test_a_fault_acts_at_its_own_point_and_layer_only():
    armed("zeros.middle")
    value = torch.ones(3, 4)
    assert switch.passes(Point.TAKEN, value, 2) is value
    assert switch.passes(Point.SERVED, value, 1) is value
    assert not switch.passes(Point.SERVED, value, 2).any()


def test_switched_off_it_is_gone_and_its_hooks_are_removed():
    armed("write-dropped")
    assert switch.passes(Point.TAKEN, 1, 0) is SKIPPED
    module = torch.nn.Linear(2, 2)
    fault = switch.Armed(find(FAULTS, "write-dropped"), 4)
    fault.handles.append(module.register_forward_hook(lambda *_: torch.zeros(2)))
    switch.arm(fault)
    assert not module(torch.ones(2)).any()
    switch.disarm()
    assert switch.passes(Point.TAKEN, 1, 0) == 1
    assert module(torch.ones(2)).any()


def test_what_a_fault_remembers_ends_with_it():
    armed("layer-off")
    switch.passes(Point.SERVED, torch.ones(3, 4), 0)
    armed("layer-off")
    second = torch.full((3, 4), 2.0)
    assert torch.equal(switch.passes(Point.SERVED, second, 1), second)


@pytest.mark.parametrize("forked", [True, False])
def test_a_process_that_was_not_forked_gets_the_points_with_its_first_fault(monkeypatch, forked):
    """As vLLM starts its workers on CUDA: without them no fault would act, and all be missed."""
    put = []
    monkeypatch.setattr(hooks._POINTS, "installed", forked)
    monkeypatch.setattr(hooks, "install", lambda *of, **on: put.append((of, on)))
    monkeypatch.setattr(worker_rpc, "pipeline_place", lambda: (1, 2))
    worker = SimpleNamespace(model_runner=SimpleNamespace(get_model=lambda: None))
    assert hooks.arm_worker(worker, "zeros.middle", 4, (), switch.Traced()) == ""
    assert put == ([] if forked else [(("vllm",), {"pipeline": 2})])
    value = torch.ones(3, 4)
    assert not switch.passes(Point.SERVED, value, 2).any()
