"""The stream after every layer as plain torch hooks see it: what is computed, not what is read.

Nothing of nnsight is used but the path of the layer list and the layout that was settled.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.nn import Module

from conformance.engines.tree import follow
from conformance.engines.vllm.worker_rpc import identity
from conformance.residual_stream import LAYOUTS

Streams = dict[int, Tensor]


@contextmanager
def watched(layers: Mapping[int, Module], layout: str) -> Iterator[Streams]:
    """Each layer's stream [tokens, width] in the first forward of the block, on the CPU."""
    found: Streams = {}

    def note(index: int) -> Any:
        def hook(module: Module, args: Any, output: Any) -> None:
            if index not in found:
                stream = LAYOUTS[layout].read(output)
                found[index] = stream.detach().to("cpu", copy=True)

        return hook

    handles = [layer.register_forward_hook(note(index)) for index, layer in layers.items()]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def packed(streams: Streams) -> bytes:
    """Streams as bytes: the one form of a tensor that comes out of an engine whose core is a
    process of its own as it went in. A bare one arrives as a list of dtype, shape and buffer.
    """
    return to_bytes({str(index): stream.contiguous() for index, stream in streams.items()})


def unpacked(data: bytes) -> Streams:
    """What was packed, by layer: from safetensors it comes in any order."""
    found = from_bytes(data)
    return {index: found[str(index)] for index in sorted(map(int, found))}


class WatchRPC:
    """Mixed into a worker of vLLM: watches the layers that its process holds."""

    model_runner: Any

    def conformance_watch(self, path: str, layout: str) -> None:
        """Begin. `path` leads to the list of layers."""
        every = follow(self.model_runner.get_model(), path)
        start, end = identity(self)["layers"]
        layers = {index: every[index] for index in range(start, end)}
        self._watching = watched(layers, layout)
        self._streams = self._watching.__enter__()

    def conformance_watched(self) -> bytes:
        """What was seen since, packed. The hooks are gone."""
        self._watching.__exit__(None, None, None)
        return packed(self._streams)
