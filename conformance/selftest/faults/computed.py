"""Faults in what an engine's layers compute or where its scheduler puts it, by model hooks."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from functools import partial
from typing import Any

from torch import Tensor, nn

from conformance.records import Side, Verdict
from conformance.selftest.fault import VLLM, Fault, Inexpressible, Moment, Point
from conformance.selftest.faults.forward import MORE
from conformance.selftest.faults.model import attention, branch_gives, layer, mlp

#: A branch's output, and the moment of the fault → the output instead.
Change = Callable[[Tensor, Moment], Tensor]


def _branch(find: Callable[[nn.Module], nn.Module | None], change: Change) -> Any:
    """Return a fault that changes the output of a layer's branch."""
    return partial(_hooks, find, change)


def _hooks(
    find: Callable[[nn.Module], nn.Module | None], change: Change, model: nn.Module, now: Moment
) -> list[Any]:
    return branch_gives(model, now, find, lambda value: change(value, now))


def scaled(value: Tensor, now: Moment) -> Tensor:
    return value * now.dose


def shifted(value: Tensor, now: Moment) -> Tensor:
    """Give every token its neighbour's row."""
    rows = value.reshape(-1, value.shape[-1])
    return rows.roll(1, dims=0).reshape(value.shape)


def halves_swapped(value: Tensor, now: Moment) -> Tensor:
    return value.roll(value.shape[-1] // 2, dims=-1)


def reversed_rows(value: Tensor, now: Moment) -> Tensor:
    rows = value.reshape(-1, value.shape[-1])
    return rows.flip(0).reshape(value.shape)


def stale(model: nn.Module, now: Moment) -> list[Any]:
    """Replace an MLP's output by that of the previous layer: a buffer that was not written."""
    assert now.at is not None  # noqa: S101
    layers = [layer(model, at, now.layers) for at in (now.at - 1, now.at)]
    if layers[0] is None or layers[1] is None:
        if any(part is not None for part in layers):
            raise Inexpressible("the two layers are on two stages")
        return []
    branches = [mlp(part) for part in layers if part is not None]
    if branches[0] is None or branches[1] is None:
        raise Inexpressible("the layer has no such branch of its own")
    previous: list[Tensor] = []

    def keep(_: Any, args: Any, output: Any) -> None:
        previous[:] = [(output[0] if isinstance(output, tuple) else output).clone()]

    def instead(value: Tensor) -> Tensor:
        return previous[0] if previous and previous[0].shape == value.shape else value

    return [
        branches[0].register_forward_hook(keep),
        *branch_gives(model, now, mlp, instead),
    ]


def slots(model: nn.Module, now: Moment) -> list[Any]:
    """Shift the scheduler's map of tokens to cache slots by one. In a step of several tokens, each
    key and value is then stored in its neighbour's slot.
    """
    context = importlib.import_module("vllm.forward_context")

    def hook(_: Any, args: Any) -> None:
        if not context.is_forward_context_available():
            return
        forward_context = context.get_forward_context()
        maps = {
            id(slot_map): slot_map for slot_map in (forward_context.slot_mapping or {}).values()
        }
        for described in (forward_context.attn_metadata or {}).values():
            mapping = getattr(described, "slot_mapping", None)
            if isinstance(mapping, Tensor):
                maps[id(mapping)] = mapping
        moved = set()
        for slot_map in maps.values():
            if len(slot_map) > 1 and slot_map.data_ptr() not in moved:
                moved.add(slot_map.data_ptr())
                slot_map.copy_(slot_map.roll(1))

    return [model.register_forward_pre_hook(hook)]


def _fault(name: str, act: Any, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.ENGINE,
        "point": Point.FORWARD,
        "cases": MORE,
        "verdicts": frozenset({Verdict.WRONG}),
        "places": ("middle",),
    }
    return Fault(id=name, act=act, **(defaults | more))


FAULTS = (
    _fault(
        "mlp-scaled",
        _branch(mlp, scaled),
        doses=(1.01, -1.0),
        summary="What one layer's MLP gives is multiplied by a constant.",
    ),
    _fault(
        "mlp-rows",
        _branch(mlp, shifted),
        summary="What one layer's MLP gives is shifted by one token, across requests too.",
    ),
    _fault(
        "mlp-halves",
        _branch(mlp, halves_swapped),
        summary=("The halves of the width of what one layer's MLP gives have changed places."),
    ),
    _fault(
        "mlp-stale",
        stale,
        places=("last",),
        summary=("One layer's MLP gives what that of the layer before gave: a stale buffer."),
    ),
    _fault(
        "attention-scaled",
        _branch(attention, scaled),
        doses=(1.01, -1.0),
        summary="What one layer's attention gives is multiplied by a constant.",
    ),
    _fault(
        "attention-rows",
        _branch(attention, shifted),
        summary="What one layer's attention gives is shifted by one token.",
    ),
    _fault(
        "attention-order",
        _branch(attention, reversed_rows),
        summary="What one layer's attention gives is in reverse order of the tokens.",
    ),
    _fault(
        "slots-off",
        slots,
        cases=("multigen.read",),
        places=("",),
        backends=VLLM,
        summary=(
            "The scheduler's map of tokens to slots of the cache is one off, so that "
            "later steps attend to keys and values in each other's place."
        ),
    ),
)
