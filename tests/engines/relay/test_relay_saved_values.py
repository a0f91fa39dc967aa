"""On which GPU a stage has what a block captured, and a client what was saved; without a GPU."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from nnsight.intervention.serialization import dumps
from nnsight.modeling.vllm.model_runners import GPUModelRunner

from conformance.engines.vllm import patches
from conformance.engines.vllm.patches import PatchPlace
from conformance.engines.vllm.relay import saved_values


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Where torch was asked to put each storage of a stream: none is moved."""
    places: list[str] = []

    def restored(storage: Any, location: str) -> Any:
        places.append(location)
        return storage

    monkeypatch.setattr(torch.serialization, "default_restore_location", restored)
    return places


@pytest.fixture
def from_gpu(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A pickle as of a process whose tensors are all at `location`."""

    def pickled(value: Any, location: str, dump: Callable[[Any], bytes] = dumps) -> bytes:
        with monkeypatch.context() as there:
            there.setattr(torch.serialization, "location_tag", lambda _: location)
            return dump(value)

    return pickled


@pytest.fixture
def on_a_stage() -> Iterator[None]:
    """This process is one of a relayed engine's."""
    with patches.applied(PatchPlace.RELAY, reports=True):
        yield


def captured() -> dict[str, Any]:
    row = torch.arange(6.0).reshape(2, 3)
    return {
        "row": row,
        "held": {"again": [(row,)], "view": row[1], "other": torch.tensor([True])},
        "module": torch.nn.Linear(2, 2),
        "sparse": torch.eye(2).to_sparse(),
    }


@pytest.mark.usefixtures("on_a_stage")
@pytest.mark.parametrize("location", ["cuda:0", "cuda:1", "cuda:7"])
def test_what_a_block_captured_is_on_the_gpu_of_the_stage_that_runs_it(asked, from_gpu, location):
    back = GPUModelRunner.loads(from_gpu(captured(), location), persistent_objects={})
    assert asked
    assert set(asked) == {"cuda"}  # torch's name of the GPU that a process uses
    assert back["held"]["again"][0][0] is back["row"]
    assert torch.equal(back["held"]["view"], torch.tensor([3.0, 4.0, 5.0]))
    assert isinstance(back["module"].weight, torch.nn.Parameter)


@pytest.mark.usefixtures("on_a_stage")
def test_what_was_on_the_host_stays_there_and_what_is_on_no_device(asked):
    value = captured()
    back = GPUModelRunner.loads(dumps(value), persistent_objects={})
    assert set(asked) == {"cpu"}
    assert back["held"]["again"][0][0] is back["row"]
    assert torch.equal(back["row"], value["row"])
    assert torch.equal(back["sparse"].to_dense(), torch.eye(2))
    asked.clear()
    assert GPUModelRunner.loads(dumps([torch.empty(3, device="meta")]))[0].is_meta
    assert asked == []


@pytest.mark.usefixtures("on_a_stage")
def test_a_module_of_the_model_is_the_stages_own(from_gpu):
    named, mine = torch.nn.Linear(1, 1), torch.nn.Linear(1, 1)
    named.__dict__["_persistent_id"] = "Module:model.norm"
    stream = from_gpu({"norm": named}, "cuda:1")
    back = GPUModelRunner.loads(stream, persistent_objects={"Module:model.norm": mine})
    assert back["norm"] is mine


def test_what_was_saved_comes_home_as_it_was():
    shared = torch.arange(6).reshape(2, 3)
    value = {
        "rows": [shared[1], torch.randn(2, 2).bfloat16(), torch.tensor(3.0), torch.zeros(0, 4)],
        "twice": shared,
        "again": shared,
        "other": torch.nn.Parameter(torch.ones(2)),
        "object": SimpleNamespace(inside=torch.ones(3, dtype=torch.bool)),
    }
    back = pickle.loads(saved_values.dumps(value))
    assert back["twice"] is back["again"]
    assert isinstance(back["other"], torch.nn.Parameter)
    assert torch.equal(back["object"].inside, value["object"].inside)
    for one, other in zip(back["rows"], value["rows"], strict=True):
        assert (one.dtype, one.shape) == (other.dtype, other.shape)
        assert torch.equal(one, other)
    assert back["rows"][0].untyped_storage().nbytes() == 3 * 8


def test_what_was_saved_comes_home_to_the_clients_gpu(asked, from_gpu):
    """What wants gradients goes through torch's own pickling, a plain tensor does not."""
    plain = torch.ones(3)
    value = {"one": torch.ones(2, requires_grad=True), "two": plain, "three": [plain]}
    back = pickle.loads(from_gpu(value, "cuda:1", saved_values.dumps))
    assert set(asked) == {"cuda"}
    assert back["three"][0] is back["two"]
    assert back["two"].device.type == "cpu"


def test_a_plain_tensor_comes_home_to_the_device_that_torch_names_without_a_number(monkeypatch):
    packed = saved_values.pack_tensors([torch.ones(3)])
    moved: list[torch.device] = []
    monkeypatch.setattr(torch.Tensor, "to", lambda self, at: moved.append(torch.device(at)) or self)
    tensor = saved_values._SavedValueUnpickler(packed).persistent_load(("cuda", 0))
    assert moved == [torch.device("cuda")]
    assert torch.equal(tensor, torch.ones(3))
