"""The reference computed with fewer roundings, as fused kernels do.

transformers rounds to bf16 after every step of a norm, an activation and a gate; a fused kernel
computes in float32 and rounds once. Both are valid, and where a massive activation arises they can
be far apart.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from transformers.activations import ACT2CLS

from conformance.engines.reference.experts import is_experts, rounded_once
from conformance.engines.reference.patched_forward import Forwards

#: The relative float32 tolerance to which a formula must match a norm.
_SAME = 1e-4


def fused_forwards(model: Module) -> Forwards:
    """Return forwards that compute norms, activations, gates and experts in float32, each with
    one rounding.
    """
    activations = {kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()}
    forwards: dict[Module, Callable[..., Tensor]] = {}
    gates: dict[Module, _Gate] = {}
    for child in model.modules():
        if (norm := rms_norm(child)) is not None:
            forwards[child] = norm
        elif is_gated(child):
            activation = child.get_submodule("act_fn")
            gate = gates.setdefault(activation, _Gate(activation))
            forwards[child] = gated(child, gate)
        elif is_experts(child):
            forwards[child] = rounded_once(child)
        elif type(child) in activations:
            forwards[child] = in_float32(child)
    return {**forwards, **{child: gate.activate for child, gate in gates.items()}}


def rms_norm(module: Any) -> Callable[[Tensor], Tensor] | None:
    """Return a forward for x / √(mean x² + ε) · w that rounds once (Zhang and Sennrich 2019), or
    with 1 + w as in Gemma. The name does not say which, so it is measured; None if neither fits.
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
        own = type(module).forward(module, ramp)
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


def gated(module: Any, gate: _Gate) -> Callable[[Tensor], Tensor]:
    """Return a forward for down(act(gate(x)) · up(x)) that rounds the product once.

    It calls the submodules in the order of transformers' own forward, with values of the model's
    dtype, so that hooks and traces on them work as they do there.
    """

    def forward(value: Tensor) -> Tensor:
        activated = module.act_fn(module.gate_proj(value))
        up = module.up_proj(value)
        product = gate.unrounded(activated) * up.float()
        return module.down_proj(product.to(up.dtype))  # type: ignore[no-any-return]

    return forward


class _Gate:
    """The activation of a gated MLP in float32.

    `activate` returns the rounded value, which a hook may change; the product takes what
    `unrounded` makes of it.
    """

    def __init__(self, activation: Module) -> None:
        self._activation = activation
        self._last: tuple[Tensor, Tensor] | None = None

    def activate(self, value: Tensor) -> Tensor:
        wide: Tensor = type(self._activation).forward(self._activation, value.float())
        rounded = wide.to(value.dtype, copy=True)
        self._last = (wide, rounded.clone())
        return rounded

    def unrounded(self, activated: Tensor) -> Tensor:
        """Return the last activation in float32 before rounding. Elements that were written since
        then keep the written value.
        """
        last, self._last = self._last, None
        if last is None or last[1].shape != activated.shape:
            return activated.float()
        wide, rounded = last
        return torch.where(activated == rounded, wide, activated.float())


def in_float32(module: Module) -> Callable[[Tensor], Tensor]:
    own = type(module).forward
    return lambda value: own(module, value.float()).to(value.dtype)
