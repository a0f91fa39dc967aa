"""What an engine says of giving the same bits again, and where vLLM's core is."""

from __future__ import annotations

import itertools
import os
from collections.abc import Sequence
from types import SimpleNamespace

import msgspec
import pytest
import torch

from conformance.engines.probing.beside import kept_beside
from conformance.engines.probing.repeated import repeats
from conformance.engines.probing.watching import watched
from conformance.engines.user_trace import vllm as checked
from conformance.engines.vllm import client, engine
from conformance.engines.vllm.inside.worker_rpc import packed, unpacked
from conformance.spec.records import Backend, Column, Group, Job, Model


def test_bits_that_come_again_are_told_from_those_that_do_not() -> None:
    buffer = torch.zeros(3)
    assert repeats(lambda: [(torch.ones(2), torch.zeros(1))])
    calls = itertools.count()

    def otherwise() -> list[torch.Tensor]:
        return [buffer.fill_(1.0 + next(calls) * 1e-7)]  # one memory, overwritten

    assert not repeats(otherwise)
    assert not repeats(lambda: [torch.ones(next(calls))])
    assert not repeats(list)


@pytest.mark.parametrize(
    ("identity", "bitwise", "beside"),
    [
        ({"device": "cpu"}, True, False),
        ({"device": "cuda"}, False, False),
        ({"device": "cuda", "repeats": False}, False, False),
        ({"device": "cuda", "repeats": True}, True, False),
        ({}, False, False),
        ({"device": "cpu", "kept_beside": False}, True, False),
        ({"device": "cpu", "kept_beside": True}, True, True),
        ({"device": "cuda", "repeats": True, "kept_beside": True}, True, True),
        ({"device": "cuda", "kept_beside": True}, False, False),
    ],
)
def test_which_engines_are_held_to_bits_also_of_a_prompt_alone(
    identity: dict[str, object], *, bitwise: bool, beside: bool
) -> None:
    group = Group("llama", "vllm-pp1", identity=identity)
    assert (group.bitwise, group.bitwise_beside) == (bitwise, beside)
    promised = Group("llama", "vllm-pp1", identity={**identity, "batch_invariant": True})
    assert promised.batch_invariant is bitwise and not group.batch_invariant


def test_a_prompt_that_its_neighbours_change_is_told_from_one_that_they_do_not() -> None:
    def rows(prompts: Sequence[str], each: float = 0.0) -> list[list[torch.Tensor]]:
        return [[torch.full((2,), len(prompt) + each * len(prompts))] for prompt in prompts]

    assert kept_beside(rows)
    assert not kept_beside(lambda prompts: rows(prompts, 1e-5))
    # The last of them alone changes.
    assert not kept_beside(lambda prompts: [*rows(prompts)[:-1], rows(prompts, 1e-5)[-1]])
    assert not kept_beside(lambda prompts: [[] for _ in prompts])

    def refusing(prompts: Sequence[str]) -> list[list[torch.Tensor]]:
        if len(prompts) > 1:
            raise NotImplementedError("one at a time")
        return rows(prompts)

    assert not kept_beside(refusing)


def test_streams_come_out_of_an_engines_process_as_they_went_in() -> None:
    """vLLM's core answers in msgpack, which gives back plain values and bytes only."""
    layers = {index: torch.nn.Linear(4, 4).to(torch.bfloat16) for index in (2, 3)}
    with watched(layers, "single") as streams:
        value = torch.randn(5, 4, dtype=torch.bfloat16)
        for layer in layers.values():
            value = layer(value)
    answer = msgspec.msgpack.decode(msgspec.msgpack.encode([packed(streams)]))
    [found] = map(unpacked, answer)
    assert list(found) == [2, 3]
    for index, stream in streams.items():
        assert found[index].dtype == torch.bfloat16
        assert torch.equal(found[index], stream)


def test_a_core_elsewhere_is_told_from_one_here() -> None:
    core = object()
    here = SimpleNamespace(
        llm_engine=SimpleNamespace(engine_core=SimpleNamespace(engine_core=core))
    )
    elsewhere = SimpleNamespace(engine_core=SimpleNamespace())
    assert client.core_here(here) is core
    assert client.core_here(elsewhere) is None
    assert client.core_here(None) is None  # behind a server


@pytest.mark.parametrize(("module", "kind"), [(engine, "VLLMEngine"), (checked, "CheckedVLLM")])
def test_on_a_gpu_the_core_is_in_the_process_that_asks(module, kind, monkeypatch, tmp_path):
    """It takes all requests of a trace before it begins, and functions to run in its processes."""
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "1")
    monkeypatch.setattr(module, kind, lambda *_: os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"])
    column = Column(Backend("vllm-pp1", "vllm"))
    job = Job("", Model("llama", "llama", ()), column, *[tmp_path] * 3, ())
    assert module.open_engine(job) == "0"
