"""The reference computed with the order of addition of two tensor-parallel ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from conformance.engines.reference.experts import in_halves, is_experts
from conformance.engines.reference.patched_forward import Forwards


def split_forwards(model: Any) -> Forwards:
    """Return forwards that compute each projection to the model's width, and experts, as the sum of
    two halves, each rounded to the model's dtype.
    """
    width = model.config.get_text_config().hidden_size
    forwards: dict[Module, Callable[..., Tensor]] = {}
    for child in model.modules():
        if is_experts(child):
            forwards[child] = in_halves(child)
        elif type(child) in {Linear, Conv1D} and len(_matrix(child)) == width:
            forwards[child] = _added_in_halves(child)
    return forwards


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
