"""The routers of a mixture of experts, found by their place and shape."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module

from conformance.engines.reference.experts import is_experts


def routers(module: Module) -> list[Module]:
    """Return the routers: siblings of a layer's experts with one row per expert."""
    modules = []
    for parent in module.modules():
        children = list(parent.children())
        counts = {
            len(child.get_parameter("gate_up_proj")) for child in children if is_experts(child)
        }
        for child in children:
            weight = getattr(child, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[0] in counts:
                modules.append(child)
    return modules
