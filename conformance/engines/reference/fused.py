"""The reference computed with fewer roundings, as fused kernels do.

transformers rounds to bf16 after every step of a norm, an activation and a gate; a fused
kernel works in float32 and rounds once. Both are honest: neither is nearer to the truth
by right, and where a massive activation arises the two can be far apart.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers.activations import ACT2CLS

from conformance.engines.reference.experts import is_experts, rounded_once
from conformance.engines.reference.patched_forward import exchanged

#: A formula is a norm's own when it gives what the norm gives, in float32, to this.
_SAME = 1e-4


def fused(module: Module) -> AbstractContextManager[None]:
    """Norms, activations, gates and experts of the model in float32, each with one rounding."""
    activations = {kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()}
    forwards: dict[Module, Callable[..., Tensor]] = {}
    for child in module.modules():
        if (norm := rms_norm(child)) is not None:
            forwards[child] = norm
        elif is_gated(child):
            forwards[child] = gated(child)
        elif is_experts(child):
            forwards[child] = rounded_once(child)
        elif type(child) in activations:
            forwards[child] = in_float32(child.forward)
    return exchanged(forwards)


def rms_norm(module: Any) -> Callable[[Tensor], Tensor] | None:
    """x / √(mean x² + ε) · w, rounded once (Zhang and Sennrich 2019), or with 1 + w, as Gemma
    has it. Which one is measured: a name does not tell, and None is for what is neither.
    """
    weight = getattr(module, "weight", None)
    if not type(module).__name__.endswith("RMSNorm") or weight is None or weight.ndim != 1:
        return None
    declared = getattr(module, "variance_epsilon", None) or getattr(module, "eps", None)
    epsilon = 1e-6 if declared is None else float(declared)

    def computing(offset: float) -> Callable[[Tensor], Tensor]:
        def forward(value: Tensor) -> Tensor:
            wide = value.float()
            normed = wide * (wide.square().mean(-1, keepdim=True) + epsilon).rsqrt()
            weighted: Tensor = normed * (offset + weight.float())
            return weighted.to(value.dtype)

        return forward

    ramp = torch.linspace(-1, 1, weight.numel(), device=weight.device)[None]
    with torch.no_grad():
        own = module.forward(ramp)
        for offset in (0.0, 1.0):
            forward = computing(offset)
            if float((forward(ramp) - own).norm()) <= _SAME * float(own.norm()):
                return forward
    return None


def is_gated(module: Module) -> bool:
    return all(
        isinstance(getattr(module, name, None), Module)
        for name in ("gate_proj", "up_proj", "down_proj", "act_fn")
    )


def gated(module: Any) -> Callable[[Tensor], Tensor]:
    """down(act(gate(x)) · up(x)) with the product rounded once."""

    def forward(value: Tensor) -> Tensor:
        gate = module.act_fn(module.gate_proj(value).float())
        product = gate * module.up_proj(value).float()
        return module.down_proj(product.to(value.dtype))  # type: ignore[no-any-return]

    return forward


def in_float32(forward: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    return lambda value: forward(value.float()).to(value.dtype)
