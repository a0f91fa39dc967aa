"""Every baseline run applies a write to the input or output of any module."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import nnsight
import pytest
import torch
from torch import Tensor

from conformance.engines.reference.ensemble import (
    REFERENCE_RUN,
    EnsembleMember,
    has_sdpa,
    members,
)
from conformance.engines.reference.forwards import Forwards, other_forwards
from conformance.engines.reference.model import ReferenceModel
from conformance.engines.structure import replace_tensor, tensors_in
from conformance.engines.tree import exchanged, hooked, layer_path
from conformance.engines.user_trace import hf
from conformance.engines.user_trace.hf import Way, computing, ways_of
from tests.engines import tiny

FAMILIES = ("llama", "gpt2", "gemma2", "qwen3", "mixtral", "gpt_oss", "gpt_neox")
LAYERS = 2
IDS = torch.arange(1, 9)[None]

#: How far two float32 ways may be from each other, relatively, and how far a write has to move
#: the logits before its loss is seen.
ROUNDING = 1e-4
MOVED = 10 * ROUNDING
#: And how far two bf16 ways may be.
BF16_ROUNDING = 0.05


@dataclass(frozen=True)
class Write:
    """A write to the first floating tensor of a module's input or output."""

    module: str
    role: str
    in_place: bool

    def __str__(self) -> str:
        return f"{self.module}.{self.role} {'in place' if self.in_place else 'assigned'}"

    def apply(self, value: Any) -> Any:
        """Write to a value in place, or return one with another tensor in it."""
        tensor = written_tensor(value)
        assert tensor is not None
        # No scaling: a norm undoes it.
        factor = 1 + 0.5 * torch.sin(torch.arange(tensor.shape[-1]) + 1.0).to(tensor.dtype)
        if self.in_place:
            tensor[:] *= factor
            return value
        return replace_tensor(value, tensor, tensor * factor)


def written_tensor(value: Any) -> Tensor | None:
    """Return the first floating tensor with rows among a module's arguments or outputs."""
    tensors = tensors_in(value)
    return next((one for one in tensors if one.is_floating_point() and one.ndim > 1), None)


def find_writes(module: Any) -> list[Write]:
    """Return a write for each place of the model: all modules outside its layers and of the last
    layer that see a floating tensor.
    """
    path = layer_path(module, LAYERS)
    found: list[Write] = []

    def note(name: str, role: str, value: Any) -> None:
        if written_tensor(value) is not None:
            found.extend(Write(name, role, in_place) for in_place in (True, False))

    def hook(name: str) -> Any:
        def after(_: Any, args: Any, kwargs: Any, output: Any) -> None:
            note(name, "input", (args, kwargs))
            note(name, "output", output)

        return after

    handles = [
        child.register_forward_hook(hook(name), with_kwargs=True)
        for name, child in module.named_modules()
        if name and not name.startswith(f"{path}.0")
    ]
    with hooked(handles):
        module(IDS)
    return found


@contextmanager
def written_by_hooks(module: Any, write: Write) -> Iterator[None]:
    """Write with plain torch hooks, at the first visit of the module as a trace does."""
    child = module.get_submodule(write.module)
    pending = [write]

    def before(_: Any, args: Any, kwargs: Any) -> Any:
        return pending.pop().apply((args, kwargs)) if pending else None

    def after(_: Any, args: Any, output: Any) -> Any:
        return pending.pop().apply(output) if pending else None

    handle = (
        child.register_forward_pre_hook(before, with_kwargs=True)
        if write.role == "input"
        else child.register_forward_hook(after)
    )
    with hooked([handle]):
        yield


def run_with_hooks(module: Any, write: Write) -> Tensor:
    with written_by_hooks(module, write):
        return module(IDS).logits.detach()


def run_with_trace(model: Any, write: Write) -> Tensor:
    value = "inputs" if write.role == "input" else "output"
    with model.trace(IDS):
        envoy = model.get(write.module)
        changed = write.apply(getattr(envoy, value))
        if not write.in_place:
            setattr(envoy, value, changed)
        logits = nnsight.save(model.output.logits)
    return logits.detach()


def relative(value: Tensor, other: Tensor) -> float:
    return float((value - other).norm() / other.norm())


@contextmanager
def computing_plainly(module: Any, way: Way) -> Iterator[None]:
    """Compute as a way does, without nnsight."""
    module.set_attn_implementation(way.attention)
    with exchanged(other_forwards(module, split=way.split, fused=way.fused)):
        yield


@dataclass(frozen=True)
class Expected:
    """The logits of the writes that move them, by plain hooks on transformers' own forwards."""

    module: Any
    logits: dict[Write, Tensor]

    @classmethod
    def of(cls, family: str) -> Expected:
        module = tiny.build(family, LAYERS, rough=True)
        clean = module(IDS).logits
        logits = {write: run_with_hooks(module, write) for write in find_writes(module)}
        moving = {w: value for w, value in logits.items() if relative(value, clean) > MOVED}
        assert len(moving) > 50
        return cls(module, moving)


def find_lost_in_float32(expected: Expected, way: Way) -> list[str]:
    """Return the writes of traces that do not give, computed in a way, what is expected."""
    model = nnsight.NNsight(copy.deepcopy(expected.module))
    with computing(model._module, way):
        return [
            str(write)
            for write, logits in expected.logits.items()
            if not relative(run_with_trace(model, write), logits) < ROUNDING
        ]


def find_lost_in_bf16(expected: Expected, way: Way) -> list[str]:
    """Return the writes of traces that do not give, bit by bit, what plain hooks give on the same
    way of computing.
    """
    plain = copy.deepcopy(expected.module).bfloat16()
    model = nnsight.NNsight(copy.deepcopy(plain))
    with computing(model._module, way), computing_plainly(plain, way):
        return [
            str(write)
            for write in expected.logits
            if not torch.equal(run_with_trace(model, write), run_with_hooks(plain, write))
        ]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Compute in one thread: on tensors this small, more of them only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module", params=FAMILIES)
def expected(request: Any) -> Expected:
    return Expected.of(request.param)


def test_each_way_under_nnsight_honours_each_write(expected: Expected) -> None:
    for way in ways_of(expected.module):
        if way.split or way.fused:  # else both sides of the next line are transformers' forwards
            assert (way.name, find_lost_in_float32(expected, way)) == (way.name, [])
        assert (way.name, find_lost_in_bf16(expected, way)) == (way.name, [])


def test_a_way_that_computes_again_after_a_write_is_found(monkeypatch: Any) -> None:
    """The negative control: other forwards in hooks, which run after nnsight's writes."""

    @contextmanager
    def after_nnsight(forwards: Forwards) -> Iterator[None]:
        with hooked(
            child.register_forward_hook(lambda _, args, __, forward=forward: forward(*args))
            for child, forward in forwards.items()
        ):
            yield

    expected = Expected.of("llama")
    monkeypatch.setattr(hf, "_below_nnsight", after_nnsight)
    for way in (way for way in ways_of(expected.module) if way.split or way.fused):
        place = "mlp.down_proj" if way.split else "mlp"
        lost = find_lost_in_float32(expected, way)
        for how in ("in place", "assigned"):
            assert f"model.layers.1.{place}.output {how}" in lost


def read_operation(model: Any) -> Tensor:
    with model.trace(IDS):
        value = nnsight.save(model.model.layers[1].mlp.source.self_down_proj_0.output)
    return value.detach()


def test_a_module_whose_operations_are_read_computes_by_its_own_forward() -> None:
    module = tiny.build("llama", LAYERS, rough=True)
    model = nnsight.NNsight(copy.deepcopy(module).bfloat16())
    fused = Way("fused", fused=True)
    with computing(model._module, fused):
        before = run_without_writes(model)
    with computing(model._module, Way("eager")):
        own = read_operation(model)
        rounded = run_without_writes(model)
    with computing(model._module, fused):
        # The trace before this way left nothing behind.
        assert torch.equal(run_without_writes(model), before)
        assert relative(read_operation(model).float(), own.float()) < BF16_ROUNDING
    assert not torch.equal(before, rounded)


def run_without_writes(model: Any) -> Tensor:
    with model.trace(IDS):
        logits = nnsight.save(model.output.logits)
    return logits.detach()


def reference(module: Any, member: EnsembleMember) -> ReferenceModel:
    module = copy.deepcopy(module).to(member.dtype)
    module.set_attn_implementation(member.attention)
    return ReferenceModel(module, None, member, layer_path(module, LAYERS), ())


def run_with_scenario_hooks(model: ReferenceModel, write: Write) -> Tensor:
    """Return the last token's logits of a scenario's run with plain hooks on the model."""
    with written_by_hooks(model.module, write):
        # A visit makes it an edited run, and a part one that computes all layers.
        visits = {("embedding", None): lambda step, rows: rows}
        return model.run(IDS[0].tolist(), at=visits, parts=["embedding"]).logits[0]


def test_each_member_of_the_reference_honours_each_write(expected: Expected) -> None:
    every = (REFERENCE_RUN, *members(sdpa=has_sdpa(expected.module)))
    # In float32 some are the same computation: one forward of a prompt needs no `at_once`.
    same = {"name": "", "dtype": torch.float32, "at_once": False}
    for member in dict.fromkeys(replace(member, **same) for member in every):
        model = reference(expected.module, member)
        for write, logits in expected.logits.items():
            found = run_with_scenario_hooks(model, write)
            assert relative(found, logits[0, -1]) < ROUNDING, (member, str(write))
