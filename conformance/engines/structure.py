"""The tensors in a value that a module takes or returns, or that a trace returns."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

Mapping = Callable[[torch.Tensor], torch.Tensor]


def map_tensors(value: Any, fn: Mapping) -> Any:
    """Return ``value`` with ``fn`` applied to each tensor in its tuples, lists and dicts."""
    if isinstance(value, torch.Tensor):
        return fn(value)
    if isinstance(value, tuple):
        items = [map_tensors(item, fn) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    if isinstance(value, list):
        return [map_tensors(item, fn) for item in value]
    if isinstance(value, dict):
        copied = value.copy()
        for key, item in value.items():
            copied[key] = map_tensors(item, fn)
        return copied
    return value


def replace_tensor(value: Any, old: torch.Tensor, new: torch.Tensor) -> Any:
    """Return ``value`` with the tensor ``old`` replaced by ``new``."""
    return map_tensors(value, lambda tensor: new if tensor is old else tensor)


def tensors_in(value: Any) -> list[torch.Tensor]:
    """Return the tensors in ``value``, in the order of :func:`map_tensors`."""
    tensors: list[torch.Tensor] = []

    def note(tensor: torch.Tensor) -> torch.Tensor:
        tensors.append(tensor)
        return tensor

    map_tensors(value, note)
    return tensors


def dense_copy(tensor: torch.Tensor) -> torch.Tensor:
    """Return a writable, dense copy on the CPU; quantized and sparse tensors are converted."""
    tensor = tensor.detach()
    if tensor.is_quantized:
        tensor = tensor.dequantize()
    if tensor.layout is not torch.strided:
        tensor = tensor.to_dense()
    return tensor.resolve_conj().resolve_neg().to("cpu", copy=True).contiguous()
