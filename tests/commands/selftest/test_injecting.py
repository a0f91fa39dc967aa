"""What passes a hook point, with a fault on and with none: values, writes, saves, ids."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from torch import nn

from conformance.commands.selftest.fault import SKIPPED, Moment, Point, find
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.faults.traces import runner_up
from conformance.commands.selftest.injecting import hooks, switch
from conformance.engines.vllm.inside import worker_rpc
from conformance.spec.residual_stream import LAYOUTS

LAYER, ARGUMENTS, T, D = "model.model.layers.2.output", "model.model.layers.2.input", 4, 8


@pytest.fixture(autouse=True)
def _off() -> Iterator[None]:
    yield
    switch.disarm()


def armed(name: str, layout: str = "single") -> switch.Armed:
    variant = find(FAULTS, name)
    fault = switch.Armed(variant, variant.moment(4), "model.layers", layout)
    switch.arm(fault)
    return fault


def put_in_place_of(monkeypatch: pytest.MonkeyPatch, module: str, kind: type) -> None:
    """Let this class be found where the points are put into an engine's."""
    module = ModuleType(module)
    setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, module.__name__, module)


# --- the switch ---------------------------------------------------------------


def test_with_no_fault_a_point_hands_through_the_very_object() -> None:
    value = torch.ones(3)
    assert switch.passes(Point.SERVED, value, 2) is value


def test_a_fault_acts_at_its_own_point_and_layer_only() -> None:
    armed("zeros.middle")
    value = torch.ones(3, 4)
    assert switch.passes(Point.TAKEN, value, 2) is value
    assert switch.passes(Point.SERVED, value, 1) is value
    assert not switch.passes(Point.SERVED, value, 2).any()


def test_switched_off_it_is_gone_and_its_hooks_are_removed() -> None:
    module = nn.Linear(2, 2)
    armed("write-dropped").handles.append(module.register_forward_hook(lambda *_: torch.zeros(2)))
    assert switch.passes(Point.TAKEN, 1, 0) is SKIPPED
    assert not module(torch.ones(2)).any()
    switch.disarm()
    assert switch.passes(Point.TAKEN, 1, 0) == 1
    assert module(torch.ones(2)).any()


def test_what_a_fault_remembers_ends_with_it() -> None:
    armed("layer-off")
    switch.passes(Point.SERVED, torch.ones(3, 4), 0)
    armed("layer-off")
    second = torch.full((3, 4), 2.0)
    assert torch.equal(switch.passes(Point.SERVED, second, 1), second)


@pytest.mark.parametrize("forked", [True, False])
def test_a_process_is_told_with_plain_values_and_gets_the_points_if_it_was_not_forked(
    monkeypatch, forked
):
    """As vLLM starts its workers on CUDA: without them no fault would act, and all be missed."""
    put = []
    monkeypatch.setattr(hooks, "_INSTALLED", {"vllm"} if forked else set())
    monkeypatch.setattr(hooks, "install", lambda *of, **on: put.append((of, on)))
    monkeypatch.setattr(worker_rpc, "pipeline_place", lambda: (1, 2))
    worker = SimpleNamespace(model_runner=SimpleNamespace(get_model=lambda: None))
    assert hooks.arm_worker(worker, "zeros.middle", 4, [0.1], "model.layers", "dual") == ""
    assert put == ([] if forked else [(("vllm",), {"pipeline": 2})])
    assert switch.layer_of("model.layers.2.output") == 2 and switch.layout() == "dual"
    assert not switch.passes(Point.SERVED, torch.ones(3, 4), 2).any()
    hooks.arm_worker(worker, "", 4, [], "", "")
    assert switch.layer_of("model.layers.2.output") is None


# --- nnsight's mediator -------------------------------------------------------


@pytest.fixture
def mediator(monkeypatch):
    """A mediator that serves what it holds by location, with the points put in; one row of what
    it serves is padding.
    """

    class Mediator:
        held: ClassVar[dict[str, object]] = {}

        @classmethod
        def value(cls, location):
            return cls.held[location]

        @classmethod
        def swap(cls, location, value):
            cls.held[location] = value

    put_in_place_of(monkeypatch, "nnsight.intervention.interleaver", Mediator)
    hooks.install_in_mediator(lambda rows: rows[1:])
    return Mediator


def output(layout: str):
    """A layer's output, and the stream in it."""
    draw = torch.Generator().manual_seed(0)
    first, second = torch.randn(2, T, D, generator=draw)
    raw = {"dual": (first, second), "batched": first[None], "single": first}[layout]
    return raw, LAYOUTS[layout].read(raw)


@pytest.mark.parametrize("layout", ["dual", "batched", "single"])
def test_a_fault_is_in_what_is_handed_out_and_padding_stays(mediator, layout):
    raw, stream = output(layout)
    mediator.held = {LAYER: raw, "model.model.layers.2.mlp.output": stream}
    assert mediator.value(LAYER) is raw
    armed("zeros.middle", layout)
    seen = LAYOUTS[layout].read(mediator.value(LAYER))
    assert torch.equal(seen[:1], stream[:1]) and not seen[1:].any()
    assert mediator.held[LAYER] is raw  # the engine goes on with what it had
    assert mediator.value("model.model.layers.2.mlp.output") is stream
    armed("zeros.first", layout)
    assert mediator.value(LAYER) is raw


@pytest.mark.parametrize("layout", ["dual", "batched", "single"])
@pytest.mark.parametrize(("name", "times"), [("write-dropped", 0), ("write-twice", 2)])
def test_a_fault_is_in_what_is_taken(mediator, layout, name, times):
    raw, stream = output(layout)
    mediator.held = {LAYER: raw}
    armed(name, layout)
    mediator.swap(LAYER, LAYOUTS[layout].write(raw, stream + 1))
    assert torch.allclose(LAYOUTS[layout].read(mediator.held[LAYER])[1:], stream[1:] + times)


def test_logits_and_ids_are_found_on_vllm_and_on_transformers(mediator):
    rows = torch.ones(2, D)
    mediator.held = {
        "model.logits": rows,
        "model.output": SimpleNamespace(logits=rows[None]),
        "model.samples": torch.tensor([7]),
        "generator.streamer.output": 7,
    }
    armed("logits-shift=8")
    for seen in (mediator.value("model.logits"), mediator.value("model.output").logits[0]):
        assert torch.equal(seen, torch.tensor([[1.0], [9.0]]).expand(2, D))
    assert torch.equal(rows, torch.ones(2, D))
    armed("token-other")
    assert mediator.value("model.samples") == mediator.value("generator.streamer.output") == 8


def test_arguments_are_wrong_the_first_time_and_right_after(mediator):
    rows = torch.arange(float(T * D)).reshape(T, D)
    places = torch.arange(T)
    mediator.held = {ARGUMENTS: ((places, rows), {"residual": None})}
    armed("raw-input-rows.middle", "dual")
    (first_places, first), _ = mediator.value(ARGUMENTS)
    assert first_places is places and torch.equal(first, rows.roll(1, dims=0))
    (_, again), _ = mediator.value(ARGUMENTS)
    assert again is rows


# --- between clients ----------------------------------------------------------


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
def test_one_row_of_each_request_is_a_neighbours_where_there_is_one(monkeypatch, group, own, wrong):
    class VLLMBatcher:
        total = 6

        def narrow(self, value: Any, group: Any) -> Any:
            return value if group is None else value[group[0] : sum(group)]

    put_in_place_of(monkeypatch, "nnsight.modeling.vllm.batching", VLLMBatcher)
    hooks._spans()
    rows = list(range(6))
    assert VLLMBatcher().narrow(rows, group) == own
    armed("client-rows")
    assert VLLMBatcher().narrow(rows, group) == wrong


def test_each_client_gets_what_the_one_before_it_saved_by_the_same_names(monkeypatch):
    class NNsightGPUModelRunner:
        def collect_nnsight(self, *entries: Any) -> bytes | None:
            self.sent = pickle.dumps(dict(entries)) if entries else None
            return self.sent

    place = "nnsight.modeling.vllm.model_runners.GPUModelRunner"
    put_in_place_of(monkeypatch, place, NNsightGPUModelRunner)
    hooks._collected()
    runner = NNsightGPUModelRunner()

    def collected(request: str, **saves: int) -> Any:
        return pickle.loads(runner.collect_nnsight((request, {"saves": saves})))[request]["saves"]

    found = [collected(name, saved=at) for at, name in enumerate("ab")]
    assert found == [{"saved": 0}, {"saved": 1}]
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
    model = nn.Module()
    model.layers = nn.ModuleList(nn.ModuleDict({"mlp": nn.Linear(2, 2)}) for _ in range(4))
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


# --- second best ids ----------------------------------------------------------

LOGITS = torch.tensor([[0.0, 3.0, 2.0], [5.0, 1.0, 4.0]])


def test_transformers_takes_the_second_best_in_one_step_and_the_best_after_it() -> None:
    class Generating(nn.Module):
        def generate(self) -> None: ...

        def _get_logits_processor(self) -> list[object]:
            return []

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

    put_in_place_of(monkeypatch, "vllm.v1.sample.sampler", Sampler)
    unchanged = Sampler.__dict__["greedy_sample"]
    [handle] = runner_up(nn.Linear(1, 1), Moment(None, 0))
    chosen = [Sampler().greedy_sample(LOGITS).tolist() for _ in range(2)]
    assert chosen == [[2, 2], [1, 0]]
    handle.remove()
    assert Sampler.__dict__["greedy_sample"] is unchanged
