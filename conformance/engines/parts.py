"""The parts of a model besides the residual stream: found by structure, read by their form.

A layer's two branches have the names that their model's authors gave them, which vLLM's
definitions keep; the token embeddings are the model's first embedding, and the final norm is
the last one beside the list of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import Module

from conformance.engines import Refused
from conformance.engines.tree import follow
from conformance.stream import LAYOUTS, Layer

ATTENTION = ("self_attn", "attn", "attention", "self_attention")
MLP = ("mlp", "feed_forward", "ffn")

#: Cuts what is not the block's own off a module's rows: the padding of a batch, on some engines.
Own = Callable[[Tensor], Tensor]


def every_row(rows: Tensor) -> Tensor:
    """Nothing is padded: all rows are the block's own."""
    return rows


@dataclass(frozen=True)
class Parts:
    """Paths of a model's parts, "" where it has none. `attention` and `mlp` are in a layer."""

    embedding: str = ""
    norm: str = ""
    attention: str = ""
    mlp: str = ""

    def require(self, needs: Collection[str]) -> None:
        """Raises Refused, naming what of this the model does not have."""
        absent = [name for name in needs if not getattr(self, name)]
        if absent:
            raise Refused(f"the model has no part called {' or '.join(absent)}")


def find_parts(module: Module, layers: str) -> Parts:
    """The parts of a model whose layers are at this path."""
    names = [name for name, _ in follow(module, f"{layers}.0").named_children()]
    above, _, _ = layers.rpartition(".")
    beside = follow(module, above) if above else module
    norms = [name for name, child in beside.named_children() if _is_norm(child)]
    embedded = (name for name, child in module.named_modules() if _is_embedding(child))
    return Parts(
        embedding=next(embedded, ""),
        norm=f"{above}.{norms[-1]}".lstrip(".") if norms else "",
        attention=next((name for name in names if name in ATTENTION), ""),
        mlp=next((name for name in names if name in MLP), ""),
    )


def _is_norm(module: Module) -> bool:
    return "norm" in type(module).__name__.lower()


def _is_embedding(module: Module) -> bool:
    return "Embedding" in type(module).__name__ and isinstance(
        getattr(module, "weight", None), Tensor
    )


def floating(value: Any) -> Iterator[Tensor]:
    """The tensors of numbers, with rows, that a module was given or gave; not those in tuples
    among its arguments (rotary tables).
    """
    if isinstance(value, Tensor):
        if value.is_floating_point() and value.ndim > 1:
            yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from floating(part if isinstance(part, Tensor) else None)
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from floating(part if isinstance(part, (Tensor, Mapping)) else None)


def arguments(inputs: Any) -> list[Tensor]:
    """The tensors of numbers in a call's (positional, named) arguments, in their order."""
    positional, named = inputs
    return [*floating(tuple(positional)), *floating(dict(named))]


def rows(value: Tensor) -> Tensor:
    """[tokens, width] of a tensor that may have a batch axis of one."""
    return value[0] if value.ndim == 3 else value


class Part:
    """A module as a scenario sees it: `input` and `output` are [tokens, width] of the block's
    prompt, and copies. Of a tuple the first tensor counts.
    """

    def __init__(self, envoy: Any, own: Own) -> None:
        self.envoy = envoy
        self.own = own

    @property
    def input(self) -> Tensor:
        return self.own(rows(arguments(self.envoy.inputs)[0])).clone()

    @property
    def output(self) -> Tensor:
        return self.own(rows(next(floating(self.envoy.output)))).clone()


def stream_before(inputs: Any, layout: str) -> Tensor:
    """The residual stream [tokens, width] that a layer was called with: one tensor, or the
    summands that the layer before returned.
    """
    found = arguments(inputs)
    shape = found[0].shape
    parts = tuple(value for value in found if value.shape == shape)[:2]
    if len(parts) == 1:
        return rows(parts[0])
    return LAYOUTS[layout].read(parts)


class TracedLayer(Layer):
    """A layer with its input and its two branches."""

    def __init__(self, envoy: Any, layout: str, parts: Parts) -> None:
        super().__init__(envoy, layout)
        self.parts = parts

    def own(self, value: Tensor) -> Tensor:
        """The rows of the block's prompt among the layer's."""
        return every_row(value)

    @property
    def input(self) -> Tensor:
        """The residual stream that came in, [tokens, width]."""
        return self.own(stream_before(self.envoy.inputs, self.layout)).clone()

    @property
    def attention(self) -> Part:
        return Part(follow(self.envoy, self.parts.attention), self.own)

    @property
    def mlp(self) -> Part:
        return Part(follow(self.envoy, self.parts.mlp), self.own)
