"""Which experts a mixture's tokens go to: recorded, held, and chosen otherwise at a tie.

A router can score two experts within one rounding of each other; a correct computation may choose
either. To find these ties, the block that holds the experts chooses again with its input moved by
a few roundings in either direction. It does so on a copy without hooks, which nobody observes.
"""

from __future__ import annotations

import copy
import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.reference.forwards import is_experts
from conformance.engines.tree import hooked

#: How far an input is moved, in float32 roundings of a sum as long as the model is wide: ten times
#: the effect of another order of addition.
MOVED = 10.0
#: The number of directions tried, each both ways: a token's tie may be orthogonal to one of them.
DIRECTIONS = 3


class ExpertChoice(NamedTuple):
    """The experts of each token, int64 [tokens, chosen], and their weights [tokens, …]."""

    experts: Tensor
    weights: Tensor

    def differs(self, other: ExpertChoice) -> Tensor:
        """Return bool [tokens]: whether the sets of experts differ."""
        own, others = (each.experts.sort(dim=-1).values for each in (self, other))
        return (own != others).any(dim=-1)

    def rows(self, rows: slice) -> ExpertChoice:
        """Return these tokens' experts; a batch's tokens follow one another."""
        return ExpertChoice(*(each.reshape(-1, each.shape[-1])[rows] for each in self))


class Tie(NamedTuple):
    """A token that two experts compete for, by its place in a run."""

    step: int
    layer: int
    token: int


@dataclass(frozen=True)
class Block:
    """A module that chooses among its `experts`, with its layer and a copy without hooks."""

    layer: int
    experts: Module
    copied: Module


@dataclass
class Routing:
    """What one run records of its experts, and what it must choose.

    `choices` and `ties` (bool [tokens]) have one entry per forward, by layer. A token whose experts
    differ from those of `held` gets the held ones. Each tie in `otherwise` is decided the other
    way. Ties are recorded only if `find_ties`.
    """

    held: Sequence[Mapping[int, ExpertChoice]] = ()
    otherwise: Collection[Tie] = ()
    find_ties: bool = False
    choices: list[dict[int, ExpertChoice]] = field(default_factory=list)
    ties: list[dict[int, Tensor]] = field(default_factory=list)


class _Chosen(Exception):
    """Stops a block once it has chosen."""

    def __init__(self, choice: ExpertChoice) -> None:
        super().__init__()
        self.choice = choice


def routers(module: Module) -> list[Module]:
    """Return the routers: siblings of a layer's experts with one row per expert."""
    found = []
    for parent in module.modules():
        children = list(parent.children())
        counts = {
            len(child.get_parameter("gate_up_proj")) for child in children if is_experts(child)
        }
        for child in children:
            weight = getattr(child, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[0] in counts:
                found.append(child)
    return found


def blocks(layers: Sequence[Module]) -> dict[Module, Block]:
    """Return the modules that choose among experts."""
    return {
        parent: Block(index, child, _copied(parent, child))
        for index, layer in enumerate(layers)
        for parent in layer.modules()
        for child in parent.children()
        if is_experts(child)
    }


@contextmanager
def routed(
    model: Module, found: Mapping[Module, Block], routing: Routing, padding: int = 0
) -> Iterator[None]:
    """Record the experts of every forward of the model, and hold or change them as `routing` says.

    In a batch, only the first sequence counts, without the `padding` rows before it.
    """
    inputs: dict[Module, Tensor] = {}

    def begin(module: Module, args: Any) -> None:
        routing.choices.append({})
        routing.ties.append({})

    def keep(module: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        inputs[module] = next(iter((*args, *kwargs.values())))

    def choosing(module: Module, block: Block) -> Callable[..., Any]:
        def choose(experts: Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
            given, value = _choice(args, kwargs), inputs[module]
            length = value.shape[-2]
            rows = slice(padding if length > 1 else 0, length)
            chosen = _decided(block, value, rows, given.rows(rows), routing)
            routing.choices[-1][block.layer] = chosen
            replaced = {}
            for old, new in zip(given, chosen, strict=True):
                flat = old.reshape(-1, old.shape[-1])
                if not torch.equal(flat[rows], new):
                    whole = torch.cat([flat[: rows.start], new, flat[rows.stop :]])
                    replaced[id(old)] = whole.reshape(old.shape)
            return (
                tuple(replaced.get(id(each), each) for each in args),
                {name: replaced.get(id(each), each) for name, each in kwargs.items()},
            )

        return choose

    handles = [model.register_forward_pre_hook(begin)] if found else []
    for module, block in found.items():
        handles.append(module.register_forward_pre_hook(keep, with_kwargs=True))
        hook = choosing(module, block)
        handles.append(block.experts.register_forward_pre_hook(hook, with_kwargs=True))
    with hooked(handles):
        yield


def _decided(
    block: Block, value: Tensor, rows: slice, given: ExpertChoice, routing: Routing
) -> ExpertChoice:
    """Return the experts that `rows` of a block's input go to; record their ties."""
    step = len(routing.choices) - 1
    chosen = given
    if routing.find_ties:
        tied = torch.zeros(len(given.experts), dtype=torch.bool, device=value.device)
        wanted = torch.zeros_like(tied)
        for tie in routing.otherwise:
            if (tie.step, tie.layer) == (step, block.layer):
                wanted[tie.token] = True
        for other in _others(block, value):
            changed = given.differs(other.rows(rows))
            chosen = _mixed(chosen, other.rows(rows), changed & wanted)
            tied |= changed
            wanted &= ~changed
        routing.ties[-1][block.layer] = tied
    held = routing.held[step].get(block.layer) if step < len(routing.held) else None
    if held is not None and held.experts.shape == chosen.experts.shape:
        chosen = _mixed(chosen, held, chosen.differs(held))
    return chosen


def _mixed(choice: ExpertChoice, other: ExpertChoice, taken: Tensor) -> ExpertChoice:
    """Return the choice with the tokens in `taken`, bool [tokens], from the other."""
    pairs = zip(choice, other, strict=True)
    return ExpertChoice(*(torch.where(taken[:, None], theirs, own) for own, theirs in pairs))


def _others(block: Block, value: Tensor) -> Iterator[ExpertChoice]:
    """Yield the block's choices after its input was moved by a few roundings."""
    unit = torch.finfo(value.dtype).eps * math.sqrt(value.shape[-1])
    draw = torch.Generator(device="cpu").manual_seed(0)
    for _ in range(DIRECTIONS):
        noise = torch.randn(value.shape, generator=draw).to(value.device, value.dtype)
        for moved in (MOVED * unit, -MOVED * unit):
            try:
                block.copied(value * (1 + moved * noise))
            except _Chosen as stopped:
                yield stopped.choice


def _choice(args: Sequence[Any], kwargs: Mapping[str, Any]) -> ExpertChoice:
    """Return what the experts are called with: their ids, and last their weights."""
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
    experts = [each for each in given if not each.is_floating_point()]
    return ExpertChoice(experts[0], [each for each in given if each.is_floating_point()][-1])


def _copied(module: Module, experts: Module) -> Module:
    """Return a copy that shares the weights, has no hooks, and stops at the experts."""
    copied = copy.copy(module)
    state: dict[str, Any] = copied.__dict__
    state.pop("forward", None)
    state |= {name: OrderedDict() for name in state if name.endswith(("_hooks", "_pre_hooks"))}
    if module is experts:
        state["forward"] = _stop
        return copied
    state["_modules"] = {
        name: child if child is None else _copied(child, experts)
        for name, child in module._modules.items()
    }
    return copied


def _stop(*args: Any, **kwargs: Any) -> None:
    raise _Chosen(_choice(args, kwargs))
