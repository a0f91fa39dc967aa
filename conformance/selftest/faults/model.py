"""Find the parts of a real model that faults of the forward change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from conformance.selftest.fault import Inexpressible, Moment


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


def mlp(part: nn.Module) -> nn.Module | None:
    """Return the second branch of a layer."""
    return next((child for name, child in part.named_children() if name == "mlp"), None)


def branch_gives(
    model: nn.Module,
    now: Moment,
    find: Callable[[nn.Module], nn.Module | None],
    change: Callable[[Tensor], Tensor],
) -> list[Any]:
    """Hook a branch of the fault's layer so that `change` is applied to its output. Return no hook
    if another stage holds the layer.
    """
    assert now.at is not None  # noqa: S101 - every variant of these names a layer
    part = layer(model, now.at, now.layers)
    if part is None:
        return []
    branch = find(part)
    if branch is None:
        raise Inexpressible("the layer has no such branch of its own")

    def hook(_: Any, args: Any, output: Any) -> Any:
        if isinstance(output, tuple):
            return (change(output[0]), *output[1:])
        return change(output)

    return [branch.register_forward_hook(hook)]


def attention(part: nn.Module) -> nn.Module | None:
    """Return the first branch of a layer."""
    names = ("self_attn", "attn", "attention")
    return next((child for name, child in part.named_children() if name in names), None)


def latent(part: nn.Module) -> tuple[nn.Module | None, nn.Module | None]:
    """Return two modules of latent attention: the projection down to the latent (alone or merged
    with that of the queries), and the latent's norm.
    """
    by_name = {name.rpartition(".")[2]: child for name, child in part.named_modules()}
    down = by_name.get("kv_a_proj_with_mqa") or by_name.get("fused_qkv_a_proj")
    return down, by_name.get("kv_a_layernorm")


def positional(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return the modules that use positions: rotary or learned embeddings."""
    return [
        (name, child)
        for name, child in model.named_modules()
        if name.endswith(("rotary_emb", "wpe"))
    ]


def final_norm(model: nn.Module, count: int) -> nn.Module | None:
    """Return the last norm next to the list of layers, None if another process holds it."""
    for parent in model.modules():
        own = list(parent.children())
        if any(isinstance(child, nn.ModuleList) and len(child) == count for child in own):
            norms = [child for child in own if "norm" in type(child).__name__.lower()]
            return norms[-1] if norms else None
    return None
