"""The stream after every layer, observed with plain torch hooks.

Of nnsight's work, only the path of the layer list and the layout are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module

from conformance.engines.tree import hooked
from conformance.spec.residual_stream import LAYOUTS

Streams = dict[int, Tensor]


@contextmanager
def watched(layers: Mapping[int, Module], layout: str) -> Iterator[Streams]:
    """Collect each layer's stream [tokens, width] in the block's first forward, on the CPU."""
    streams: Streams = {}

    def note(index: int) -> Any:
        def hook(module: Module, args: Any, output: Any) -> None:
            if index not in streams:
                stream = LAYOUTS[layout].read(output)
                streams[index] = stream.detach().to("cpu", copy=True)

        return hook

    with hooked(layer.register_forward_hook(note(index)) for index, layer in layers.items()):
        yield streams
