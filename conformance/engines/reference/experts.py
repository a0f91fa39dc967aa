"""A layer's experts, computed with other roundings than transformers' own.

transformers stores a layer's experts as two 3-D tensors, one matrix per expert, and rounds each
expert's output before it is weighted and added. A fused kernel computes in float32 and rounds the
sum. With tensor parallelism each rank has half of every expert's inner width, and two rounded sums
are added.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module


def is_experts(module: Module) -> bool:
    """Return whether the module holds a layer's experts in transformers' two tensors."""
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
