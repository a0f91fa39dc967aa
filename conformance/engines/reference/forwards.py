"""The reference computed with other roundings and orders of addition, as engines compute.

transformers rounds to bf16 after every step of a norm, an activation and a gate, and rounds each
expert's output before it is weighted and added. A fused kernel computes in float32 and rounds once.
Two tensor-parallel ranks each hold half of every inner width, and add two rounded sums. All are
valid, and where a massive activation arises they can be far apart.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import linear
from transformers.activations import ACT2CLS
from transformers.pytorch_utils import Conv1D

#: The replacement forward of each module.
Forwards = Mapping[Module, Callable[..., Any]]

#: The relative float32 tolerance to which a formula must match a norm.
_SAME = 1e-4


def other_forwards(model: Any, *, split: bool, fused: bool) -> Forwards:
    """Return the forwards of the modules that a baseline run computes differently.

    With `split`, each projection to the model's width, and experts, are the sum of two halves, each
    rounded to the model's dtype. With `fused`, norms, activations, gates and experts are computed
    in float32, each with one rounding. They take the place of the modules' own forwards, so a hook
    or a trace reads and writes the inputs and outputs of a module as it does in the reference.
    """
    width = model.config.get_text_config().hidden_size
    activations = {kind[0] if isinstance(kind, tuple) else kind for kind in ACT2CLS.values()}
    forwards: dict[Module, Callable[..., Tensor]] = {}
    gates: dict[Module, _Gate] = {}
    for child in model.modules():
        if split and is_experts(child):
            forwards[child] = in_halves(child)
        elif split and type(child) in {Linear, Conv1D} and len(_matrix(child)) == width:
            forwards[child] = _added_in_halves(child)
        if not fused:
            continue
        if (norm := rms_norm(child)) is not None:
            forwards[child] = norm
        elif _is_gated(child):
            activation = child.get_submodule("act_fn")
            gate = gates.setdefault(activation, _Gate(activation))
            forwards[child] = _gated(child, gate)
        elif is_experts(child):
            forwards[child] = rounded_once(child)
        elif type(child) in activations:
            forwards[child] = _in_float32(child)
    return {**forwards, **{child: gate.activate for child, gate in gates.items()}}


def _matrix(layer: Any) -> Tensor:
    """Return the weight as [out, in]."""
    weight: Tensor = layer.weight if isinstance(layer, Linear) else layer.weight.T
    return weight


def _added_in_halves(layer: Any) -> Callable[[Tensor], Tensor]:
    def forward(value: Tensor) -> Tensor:
        weight = _matrix(layer)
        middle = weight.shape[1] // 2
        first = linear(value[..., :middle], weight[:, :middle])
        total = first + linear(value[..., middle:], weight[:, middle:])
        return total if layer.bias is None else total + layer.bias

    return forward


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


def _is_gated(module: Module) -> bool:
    return all(
        isinstance(getattr(module, name, None), Module)
        for name in ("gate_proj", "up_proj", "down_proj", "act_fn")
    )


def _gated(module: Any, gate: _Gate) -> Callable[[Tensor], Tensor]:
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


def _in_float32(module: Module) -> Callable[[Tensor], Tensor]:
    own = type(module).forward
    return lambda value: own(module, value.float()).to(value.dtype)


def is_experts(module: Module) -> bool:
    """Return whether the module holds a layer's experts as transformers stores them: two 3-D
    tensors, one matrix per expert.
    """
    parameters = [getattr(module, name, None) for name in ("gate_up_proj", "down_proj")]
    return all(isinstance(parameter, Tensor) and parameter.ndim == 3 for parameter in parameters)


def rounded_once(module: Module) -> Callable[..., Tensor]:
    """Return a forward that computes the experts and their weighted sum in float32."""

    def forward(value: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        wide = {name: parameter.float() for name, parameter in module.named_parameters()}
        return _computed(module, wide, value.float(), index, weights.float()).to(value.dtype)

    return forward


def in_halves(module: Module) -> Callable[..., Tensor]:
    """Return a forward that adds the results of the two halves of every expert's inner width."""

    def forward(value: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        weights_by_name = dict(module.named_parameters())
        down = weights_by_name["down_proj"]
        # [experts, width, inner] with [experts, 2·inner, width], or both transposed.
        inner = 2 if weights_by_name["gate_up_proj"].shape[1] == 2 * down.shape[2] else 1
        first = torch.arange(down.shape[inner], device=down.device) < down.shape[inner] // 2
        mask = first if inner == 2 else first[:, None]
        bias = {n: torch.zeros_like(b) for n, b in weights_by_name.items() if n == "down_proj_bias"}
        left = {**weights_by_name, "down_proj": down * mask}
        right = {**weights_by_name, **bias, "down_proj": down * ~mask}
        # Both halves have the same activations; hooks and traces must see them computed once.
        recorded = {name: _Recorded(child) for name, child in module.named_children()}
        first_half = _computed(module, left, value, index, weights, children=recorded)
        replayed = {name: child.replay for name, child in recorded.items()}
        return first_half + _computed(module, right, value, index, weights, children=replayed)

    return forward


class _Recorded:
    """Calls a module and keeps its outputs, to return them again in the same order."""

    def __init__(self, module: Module) -> None:
        self._module = module
        self._outputs: deque[Tensor] = deque()

    def __call__(self, *args: Any, **kwargs: Any) -> Tensor:
        output: Tensor = self._module(*args, **kwargs)
        self._outputs.append(output.clone())
        return output

    def replay(self, *_: Any, **__: Any) -> Tensor:
        return self._outputs.popleft()


def _computed(
    module: Any,
    weights: dict[str, Tensor],
    *args: Tensor,
    children: Mapping[str, Callable[..., Any]] | None = None,
) -> Tensor:
    """Return the result of the module's own forward with these weights and children."""
    copied = copy.copy(module)
    copied._parameters = weights
    copied._modules = {**module._modules, **(children or {})}
    computed: Tensor = type(module).forward(copied, *args)
    return computed
