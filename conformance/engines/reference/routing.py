"""Near-ties of a router: which experts an honest bf16 run may choose instead.

Where two experts' scores are closer than rounding moves them, either choice is honest, and
the token's row then differs by a whole expert. Members of the ensemble meet a tie from one
side or the other by chance, and none may fall on a candidate's side. So one kind of member
takes the other side wherever noise of the size that bf16 has there can change the choice.
A member that did so everywhere else too would weigh experts worse than any honest run:
rows whose choice stands are left as they are.

Such a member takes every tie so, and what follows a tie goes on from there: a later one is not
met as a run that kept its side at the first meets it. Where one expert weighs much (two of
many are chosen, say) and ties follow each other closely, an honest run can be outside.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.reference.experts import is_experts
from conformance.engines.reference.patched_forward import exchanged

#: How far the router's input is moved, in units of the bf16 noise measured there …
REACH = 2.0
#: … and in how many directions, each forth and back. A tie within the noise is met in 98 %
#: of all cases by four directions, one three times as wide in 43 %.
DIRECTIONS = 4


def routers(module: Module) -> list[Module]:
    """The modules that choose experts: beside the experts of a layer, a row for each of them."""
    found = []
    for parent in module.modules():
        children = list(parent.children())
        counts = {
            len(child.get_parameter("gate_up_proj")) for child in children if is_experts(child)
        }
        for child in children:
            weight = getattr(child, "weight", None)
            if isinstance(weight, Tensor) and weight.ndim == 2 and weight.shape[0] in counts:
                found.append(child)
    return found


def noise(truth: Sequence[Tensor], bf16: Sequence[Tensor]) -> tuple[float, ...]:
    """The relative distance of each router's input [tokens, width] in bf16 from the truth's."""
    return tuple(
        float(((one - other).norm(dim=-1) / other.norm(dim=-1)).median())
        for one, other in zip(bf16, truth, strict=True)
    )


def inputs(module: Module, run: Callable[[], Any]) -> list[Tensor]:
    """What every router gets in the first forward that `run` makes, float32 [tokens, width]."""
    seen: dict[int, Tensor] = {}
    found = routers(module)

    def keep(index: int) -> Callable[..., None]:
        def hook(_: Module, args: Any) -> None:
            seen.setdefault(index, args[0].detach().flatten(0, -2).float())

        return hook

    handles = [each.register_forward_pre_hook(keep(index)) for index, each in enumerate(found)]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return [seen[index] for index in range(len(found))]


def other_side(
    module: Module, noises: Sequence[float], taken: Callable[[Module], bool] = lambda _: True
) -> Any:
    """Every router of the model takes the other side of its ties; one for which `taken` says
    no at a call keeps its own.
    """

    def choosing(router: Module, size: float) -> Callable[..., Any]:
        own = router.forward
        otherwise = _choosing_otherwise(own, REACH * size)

        def forward(*args: Any, **kwargs: Any) -> Any:
            return otherwise(*args, **kwargs) if taken(router) else own(*args, **kwargs)

        return forward

    found = routers(module)
    return exchanged(
        {router: choosing(router, size) for router, size in zip(found, noises, strict=True)}
    )


def _choosing_otherwise(own: Callable[..., Any], size: float) -> Callable[..., Any]:
    def forward(value: Tensor, *args: Any, **kwargs: Any) -> Any:
        chosen = own(value, *args, **kwargs)
        first = _experts_of(chosen)
        if first is None:
            return chosen
        # The same directions at every call: a run is the same each time.
        generator = torch.Generator(value.device).manual_seed(0)
        length = size * value.float().norm(dim=-1, keepdim=True) / value.shape[-1] ** 0.5
        kept = torch.ones(len(first), 1, dtype=torch.bool, device=value.device)
        for _ in range(DIRECTIONS):
            step = length * torch.randn(value.shape, generator=generator, device=value.device)
            for moved in (value + step, value - step):
                other = own(moved.to(value.dtype), *args, **kwargs)
                second = _experts_of(other)
                if second is None:
                    raise TypeError(f"a router returned {type(other).__name__} at its second call")
                changed = kept & torch.ne(second, first).any(-1, keepdim=True)
                chosen = tuple(
                    torch.where(changed, b, a) for a, b in zip(chosen, other, strict=True)
                )
                kept = kept & ~changed
        return chosen

    return forward


def _experts_of(output: Any) -> Tensor | None:
    """The chosen experts [tokens, k] in ascending order, of what a router returns."""
    parts = output if isinstance(output, tuple) else ()
    whole = [part for part in parts if isinstance(part, Tensor) and part.ndim == 2]
    ids = [part for part in whole if not part.is_floating_point()]
    return ids[0].sort(-1).values if len(ids) == 1 and len(whole) == len(parts) else None
