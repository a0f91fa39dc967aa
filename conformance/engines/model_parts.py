"""The parts of a model other than the residual stream, found by structure.

A layer's attention and MLP are found by the names that authors give them, which vLLM's definitions
keep. The token embeddings are the model's first embedding. The final norm is the last norm next to
the list of layers.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor
from torch.nn import Module

from conformance.engines import Refused
from conformance.engines.inside_attention import LocatedParts, counts, find, measure
from conformance.engines.structure import replace_tensor
from conformance.engines.tree import follow, reaches
from conformance.spec.records import Case
from conformance.spec.residual_stream import LAYOUTS, StreamLayer

ATTENTION = ("self_attn", "attn", "attention", "self_attention")
HEAD = ("lm_head", "embed_out", "output")
MLP = ("mlp", "block_sparse_moe", "feed_forward", "ffn")
ROUTER = ("gate", "router")

#: Drops the rows that are not the block's own: on some engines, the padding of a batch.
Own = Callable[[Tensor], Tensor]


def every_row(rows: Tensor) -> Tensor:
    """Return all rows, for engines without padding."""
    return rows


@dataclass(frozen=True)
class Parts:
    """Paths of a model's parts, "" for parts it lacks. `attention`, `mlp` and `router` (of the
    experts) are relative to a layer.
    """

    embedding: str = ""
    norm: str = ""
    attention: str = ""
    mlp: str = ""
    router: str = ""
    head: str = ""
    vocabulary: int = 0
    inside: LocatedParts = field(default_factory=LocatedParts)

    @property
    def heads(self) -> str:
        """The path, within a layer, of the module that takes the heads."""
        return self._within("heads")

    @property
    def qkv(self) -> str:
        """The path, within a layer, of the module that returns the values."""
        return self._within("value")

    def _within(self, part: str) -> str:
        place = self.inside.places.get(part)
        return f"{self.attention}.{place.path}" if place else ""

    def require(self, needs: Collection[str]) -> None:
        """Raise Refused, naming the part, if the model lacks one of `needs`. Needs that are not
        parts (long prompts) are models.yaml's to declare.
        """
        absent = [name for name in needs if not getattr(self, name, name)]
        if absent:
            why = (self.inside.why[name] for name in absent if name in self.inside.why)
            raise Refused(next(why, f"the model has no part called {' or '.join(absent)}"))


def require_layers(case: Case, layers: int) -> None:
    """Raise Refused if a case names a layer that a model with `layers` layers does not have."""
    for name, index in case.layers.items():
        if not 0 <= index < layers:
            raise Refused(f"the model has {layers} layers, and the case asks for {name}={index}")


#: The result of `measure` for each transformers module, which several baseline runs share.
_ARRANGED: WeakKeyDictionary[Module, str] = WeakKeyDictionary()


def parts_of(module: Any, layers: str) -> tuple[Parts, str]:
    """Return the parts of transformers' own module and how its attention arranges them."""
    config = module.config.get_text_config()
    heads, groups = counts(config)
    plain = find_parts(module, layers, config.vocab_size)
    if module not in _ARRANGED:
        every = list(follow(module, layers))
        _ARRANGED[module] = measure(module, every, plain.attention, heads, groups)
    arranged = _ARRANGED[module]
    parts = find_parts(
        module, layers, config.vocab_size, heads=heads, groups=groups, arranged=arranged
    )
    return parts, arranged


def find_parts(
    module: Module,
    layers: str,
    vocabulary: int,
    *,
    heads: int = 0,
    groups: int = 0,
    arranged: str = "",
    ranks: int = 1,
) -> Parts:
    """Return the parts of a model whose list of layers is at the path `layers`. `groups` is the
    number of key heads, `arranged` the result of `inside_attention.measure` for transformers'
    module, and `ranks` the number of tensor-parallel ranks.
    """
    last = follow(module, layers)[-1]  # the first layers may have no experts
    above, _, _ = layers.rpartition(".")
    beside = follow(module, above).named_children()
    norms = [name for name, child in beside if "norm" in type(child).__name__.lower()]
    embedded = (
        name
        for name, child in module.named_modules()
        if "Embedding" in type(child).__name__
        and isinstance(getattr(child, "weight", None), Tensor)
    )
    embedding = next(embedded, "")
    mlp, attention = _child(last, MLP), _child(last, ATTENTION)
    router = _child(follow(last, mlp), ROUTER) if mlp else ""
    inside = LocatedParts()
    if attention:
        module_of = follow(last, attention)
        inside = find(module_of, heads, groups, arranged=arranged, ranks=ranks)
    return Parts(
        embedding=embedding,
        norm=f"{above}.{norms[-1]}".lstrip(".") if norms else "",
        attention=attention,
        mlp=mlp,
        router=router and f"{mlp}.{router}",
        # A child outside of the part that holds the layers; none if it shares embedding weights.
        head=_child(module, set(HEAD) - {layers.split(".", maxsplit=1)[0]}) or embedding,
        vocabulary=vocabulary,
        inside=inside,
    )


def _child(module: Module, names: Collection[str]) -> str:
    """Return the name of the first child that is called so, or ""."""
    return next((name for name, _ in module.named_children() if name in names), "")


def floating(value: Any) -> Iterator[Tensor]:
    """Yield the floating-point tensors with rows in a module's inputs or outputs. Tuples among the
    arguments (rotary tables) are skipped.
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
    """Return the floating-point tensors in a call's (positional, named) arguments, in order."""
    positional, named = inputs
    return list(floating((*positional, named)))


def rows(value: Tensor) -> Tensor:
    """Return [tokens, width] of a tensor that may have a batch axis of size one."""
    return value[0] if value.ndim == 3 else value


class TracedPart:
    """A module as a scenario sees it. `input` and `output` are copies, [tokens, width] of the
    block's prompt; of a tuple, the first tensor. Assigning `input` (all rows, or one row for all
    tokens) changes what the module computes with and nothing else. Assigning `output` replaces what
    the module passes on.
    """

    def __init__(self, envoy: Any, own: Own) -> None:
        self.envoy = envoy
        self.own = own

    @property
    def input(self) -> Tensor:
        return self.own(rows(arguments(self.envoy.inputs)[0])).clone()

    @input.setter  # noqa: A003 - as nnsight calls it
    def input(self, value: Tensor) -> None:
        # Not nnsight's `input`, the first argument: for vLLM's attention that is the positions.
        inputs = self.envoy.inputs
        old = arguments(inputs)[0]
        new = old.clone()
        self.own(rows(new))[:] = value
        self.envoy.inputs = replace_tensor(inputs, old, new)

    @property
    def output(self) -> Tensor:
        return self.live.clone()

    @output.setter
    def output(self, value: Tensor) -> None:
        output = self.envoy.output
        old = next(floating(output))
        new = old.clone()
        self.own(rows(new))[:] = value
        self.envoy.output = replace_tensor(output, old, new)

    @property
    def live(self) -> Tensor:
        """The output itself, in the model's memory."""
        return self.own(rows(next(floating(self.envoy.output))))


def _held_part(name: str) -> property:
    """Return a property that reads and writes this part of an attention."""

    def read(self: TracedAttention) -> Tensor:
        return self.held(name)

    def write(self: TracedAttention, value: Tensor) -> None:
        self.put(name, value)

    return property(read, write)


class TracedAttention(TracedPart):
    """A layer's attention: see `conformance.spec.authoring.Attention`."""

    query = _held_part("query")
    key = _held_part("key")
    value = _held_part("value")
    heads = _held_part("heads")

    def __init__(self, envoy: Any, own: Own, parts: Parts) -> None:
        super().__init__(envoy, own)
        self.places = parts.inside.places
        self.value_first = parts.inside.value_first

    @property
    def qkv(self) -> tuple[Tensor, Tensor, Tensor]:
        if self.value_first:
            value = self.value
            return self.query, self.key, value
        return self.query, self.key, self.value

    def held(self, part: str) -> Tensor:
        """Return the query, key, value or heads, by name."""
        place = self.places[part]
        module = follow(self.envoy, place.path)
        held = arguments(module.inputs)[0] if place.of_input else next(floating(module.output))
        return place.read(held, self.own)

    def put(self, part: str, value: Tensor) -> None:
        """Make the layer continue with `value` as its query, key, value or heads."""
        place = self.places[part]
        module = follow(self.envoy, place.path)
        if place.of_input:
            old = arguments(held := module.inputs)[0]
            module.inputs = replace_tensor(held, old, place.write(old, self.own, value))
        else:
            old = next(floating(held := module.output))
            module.output = replace_tensor(held, old, place.write(old, self.own, value))


def _given_stream(inputs: Any) -> tuple[Tensor, ...]:
    tensors = arguments(inputs)
    return tuple(value for value in tensors if value.shape == tensors[0].shape)[:2]


def stream_before(inputs: Any, layout: str) -> Tensor:
    """Return the residual stream [tokens, width] that a layer was called with: one tensor, or the
    sum of the two that the previous layer returned.
    """
    parts = _given_stream(inputs)
    return rows(parts[0]) if len(parts) == 1 else LAYOUTS[layout].read(parts)


def passed_on(inputs: Any, layout: str) -> Any:
    """Return what a layer that does nothing would return, in this layout."""
    parts = [value.clone() for value in _given_stream(inputs)]
    if layout in {"dual", "full_plus_stale", "second"}:
        whole, rest = parts if len(parts) > 1 else (parts[0], parts[0].new_zeros(parts[0].shape))
        return (rest, whole) if layout == "second" and len(parts) == 1 else (whole, rest)
    return (parts[0],) if layout.startswith("tuple") else parts[0]


class TracedLayer(StreamLayer):
    """A layer with its input, attention and MLP: see `conformance.spec.authoring.Layer`."""

    def __init__(self, envoy: Any, layout: str, parts: Parts) -> None:
        super().__init__(envoy, layout)
        self.parts = parts

    def own(self, value: Tensor) -> Tensor:
        """Return the layer's rows that belong to the block's prompt."""
        return every_row(value)

    @property
    def input(self) -> Tensor:
        return self.own(stream_before(self.envoy.inputs, self.layout)).clone()

    def skip(self) -> None:
        self.envoy.skip(passed_on(self.envoy.inputs, self.layout))

    def cached(self, cache: Any) -> list[Tensor]:
        output = cache[self.envoy.path].output
        steps = output if isinstance(output, list) else [output]
        return [LAYOUTS[self.layout].read(output) for output in steps]

    @property
    def attention(self) -> TracedAttention:
        return TracedAttention(follow(self.envoy, self.parts.attention), self.own, self.parts)

    def has(self, part: str) -> bool:
        path = getattr(self.parts, part)
        return bool(path) and reaches(self.envoy, path)

    @property
    def router(self) -> TracedPart:
        return TracedPart(follow(self.envoy, self.parts.router), self.own)

    @property
    def mlp(self) -> TracedPart:
        return TracedPart(follow(self.envoy, self.parts.mlp), self.own)
