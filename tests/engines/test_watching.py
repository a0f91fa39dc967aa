"""Streams that plain hooks saw, on their way out of an engine's process."""

from __future__ import annotations

import msgspec
import torch

from conformance.engines.probing.watching import watched
from conformance.engines.vllm.inside.worker_rpc import packed, unpacked


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
