"""The reference computed with fewer roundings, as fused kernels do.

transformers rounds to bf16 after every step of a norm, an activation and a gate; a fused
kernel works in float32 and rounds once. Both are honest: neither is nearer to the truth
by right, and where a massive activation arises the two can be far apart.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module
from transformers.activations import ACT2CLS


@contextmanager
def fused(module: Module) -> Iterator[None]:
    """Norms, activations and gates of the model in float32, each with one rounding."""
    activations = {kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()}
    originals: list[tuple[Module, Any]] = []

    def exchange(child: Module, forward: Callable[..., Tensor]) -> None:
        originals.append((child, child.forward))
        child.forward = forward

    for child in list(module.modules()):
        if is_rms_norm(child):
            exchange(child, rms_norm(child))
        elif is_gated(child):
            exchange(child, gated(child))
        elif type(child) in activations:
            exchange(child, in_float32(child.forward))
    try:
        yield
    finally:
        for child, forward in originals:
            child.forward = forward


def is_rms_norm(module: Module) -> bool:
    """A root-mean-square norm that multiplies with its weight as it is (not Gemma's 1 + w)."""
    name = type(module).__name__
    return name.endswith("RMSNorm") and not name.startswith("Gemma") and hasattr(module, "weight")


def rms_norm(module: Any) -> Callable[[Tensor], Tensor]:
    """x / √(mean x² + ε) · w, rounded once (Zhang and Sennrich 2019)."""
    found = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    epsilon = 1e-6 if found is None else float(found)

    def forward(value: Tensor) -> Tensor:
        wide = value.float()
        normed = wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
        weighted: Tensor = normed * module.weight.float()
        return weighted.to(value.dtype)

    return forward


def is_gated(module: Module) -> bool:
    return all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn"))


def gated(module: Any) -> Callable[[Tensor], Tensor]:
    """down(act(gate(x)) · up(x)) with the product rounded once."""

    def forward(value: Tensor) -> Tensor:
        gate = module.act_fn(module.gate_proj(value).float())
        product = gate * module.up_proj(value).float()
        return module.down_proj(product.to(value.dtype))  # type: ignore[no-any-return]

    return forward


def in_float32(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda value: forward(value.float()).to(value.dtype)
