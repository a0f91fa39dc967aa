"""Tokens whose experts depend on rounding, because two experts' router scores are nearly equal.

The block that holds the experts runs again with its input moved by a few roundings in either
direction, and stops once it has chosen. A token whose experts change is tied: a valid computation
may choose either.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.reference.experts import is_experts

#: How far an input is moved, in float32 roundings of a sum as long as the model is wide: ten times
#: the effect of another order of addition.
MOVED = 10.0
#: The number of directions tried, each both ways: a token's tie may be orthogonal to one of them.
DIRECTIONS = 3

#: bool [tokens] by layer, for one forward.
Ties = dict[int, Tensor]


class _Chosen(Exception):
    """Stops a block once it has chosen; `experts` is integer [tokens, chosen]."""

    def __init__(self, experts: Tensor) -> None:
        super().__init__()
        self.experts = experts


def blocks(layers: Sequence[Module]) -> dict[Module, tuple[int, Module]]:
    """Return the modules that choose among experts, each with its layer and the experts."""
    return {
        parent: (index, child)
        for index, layer in enumerate(layers)
        for parent in layer.modules()
        for child in parent.children()
        if is_experts(child)
    }


@contextmanager
def router_ties(
    model: Module, found: Mapping[Module, tuple[int, Module]], steps: list[Ties]
) -> Iterator[None]:
    """Append the tied tokens by layer for every forward of the model. Enter this before other hooks
    are registered, so that they do not see the blocks run again.
    """
    inputs: list[dict[Module, Tensor]] = []

    def begin(module: Module, args: Any) -> None:
        inputs.append({})

    def keep(block: Module, args: Any, output: Any) -> None:
        inputs[-1][block] = args[0].clone()

    handles = [model.register_forward_pre_hook(begin)] if found else []
    handles += [block.register_forward_hook(keep) for block in found]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()
    steps.extend(
        {found[block][0]: tied(block, found[block][1], value) for block, value in values.items()}
        for values in inputs
    )


def tied(block: Module, experts: Module, value: Tensor) -> Tensor:
    """Return bool [tokens]: whether a few roundings of the block's input change its experts."""
    usual = _chosen(block, experts, value)
    found = torch.zeros(len(usual), dtype=torch.bool, device=usual.device)
    unit = torch.finfo(value.dtype).eps * math.sqrt(value.shape[-1])
    draw = torch.Generator(device="cpu").manual_seed(0)
    for _ in range(DIRECTIONS):
        noise = torch.randn(value.shape, generator=draw).to(value.device, value.dtype)
        for moved in (MOVED * unit, -MOVED * unit):
            other = _chosen(block, experts, value * (1 + moved * noise))
            found |= (usual != other).any(dim=-1)
    return found


def _chosen(block: Module, experts: Module, value: Tensor) -> Tensor:
    """Return int64 [tokens, chosen]: the experts the block calls, in ascending order."""

    def stop(module: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        given = (*args, *kwargs.values())
        whole = [
            each for each in given if isinstance(each, Tensor) and not each.is_floating_point()
        ]
        raise _Chosen(whole[0].reshape(-1, whole[0].shape[-1]).sort(dim=-1).values)

    handle = experts.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        block(value)
    except _Chosen as chosen:
        return chosen.experts
    finally:
        handle.remove()
    raise RuntimeError("the block called no experts")
