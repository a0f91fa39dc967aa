"""Find the parts of a real model that faults of the forward change, and hook them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from conformance.commands.selftest.fault import Inexpressible, Moment

#: The rows [tokens, width] that a branch gives → those that it gives with the fault.
Change = Callable[[Tensor, Moment], Tensor]


def layer(model: nn.Module, index: int, count: int) -> nn.Module | None:
    """Return decoder layer `index`, or None if another stage holds it."""
    lists = [
        (name, child)
        for name, child in model.named_modules()
        if isinstance(child, nn.ModuleList) and len(child) == count
    ]
    if not lists:
        return None
    _, layers = min(lists, key=lambda entry: entry[0].count("."))
    part = layers[index]
    return part if any(True for _ in part.parameters()) else None


def layer_of(model: nn.Module, now: Moment, further: int = 0) -> nn.Module | None:
    """Return the layer of the fault, or one `further` on."""
    assert now.at is not None  # noqa: S101 - every variant of these faults names a layer
    return layer(model, now.at + further, now.layers)


def attention(part: nn.Module) -> nn.Module | None:
    """Return the first branch of a layer."""
    names = ("self_attn", "attn", "attention")
    return next((child for name, child in part.named_children() if name in names), None)


def mlp(part: nn.Module) -> nn.Module | None:
    """Return the second branch of a layer."""
    return getattr(part, "mlp", None)


def change_branch(
    find: Callable[[nn.Module], nn.Module | None], change: Change, model: nn.Module, now: Moment
) -> list[Any]:
    """Hook a branch of the fault's layer so that `change` is applied to the rows that it gives.
    Return no hook if another stage holds the layer.
    """
    part = layer_of(model, now)
    if part is None:
        return []
    branch = find(part)
    if branch is None:
        raise Inexpressible("the layer has no such branch of its own")

    def hook(_: Any, args: Any, output: Any) -> Any:
        value = output[0] if isinstance(output, tuple) else output
        changed = change(value.reshape(-1, value.shape[-1]), now).reshape(value.shape)
        return (changed, *output[1:]) if isinstance(output, tuple) else changed

    return [branch.register_forward_hook(hook)]


def positional(model: nn.Module) -> list[nn.Module]:
    """Return the modules that use positions: rotary or learned embeddings."""
    names = ("rotary_emb", "wpe")
    return [child for name, child in model.named_modules() if name.endswith(names)]
