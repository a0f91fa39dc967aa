"""The honest ways of computing a reference: which there are, and how each is switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any

import torch
from torch import Tensor
from torch.nn import Linear, Module
from torch.nn.functional import linear

from conformance.engines.reference.experts import in_halves, is_experts
from conformance.engines.reference.patched_forward import exchanged
from conformance.generated_tokens import OTHER_SIDE


class Ties(Enum):
    """Which side of its near-ties a router takes. The last two are `OTHER` where nothing is
    intervened on at all: without a twin there is nothing to tell apart.
    """

    KEPT = "its own side"
    OTHER = "the other side"
    OTHER_AFTER_WRITE = "the other side after a write, in later layers and steps"
    OTHER_UNTIL_WRITE = "the other side, but not after a write"


@dataclass(frozen=True)
class Member:
    """One way to compute the reference. `pad` rows of padding go in front of the prompt,
    in a batch with a longer one; `split` adds the branches' last projections up in halves,
    as two tensor-parallel ranks do; `fused` rounds norms, activations and gates once; `ties`
    says where a router chooses the other expert of two that are equal within the noise.
    """

    name: str
    dtype: torch.dtype
    attention: str
    pad: int = 0
    split: bool = False
    fused: bool = False
    ties: Ties = Ties.KEPT


TRUTH = Member("truth", torch.float32, "eager")
#: transformers' own roundings and those of fused kernels weigh alike: where SmolLM2's
#: massive activation arises (layer 9) the two are further from each other than from the truth.
#: In order of their attention, because switching it walks the whole model.
ENSEMBLE = (
    Member("eager", torch.bfloat16, "eager"),
    Member("split", torch.bfloat16, "eager", split=True),
    Member("sdpa", torch.bfloat16, "sdpa"),
    Member("padded", torch.bfloat16, "sdpa", pad=5),
    Member("fused", torch.bfloat16, "sdpa", fused=True),
    Member("fused_split", torch.bfloat16, "sdpa", split=True, fused=True),
)

#: For a model without sdpa attention, and for one that caps its attention scores: there
#: transformers' sdpa leaves the cap out without a word (Gemma-2), and is not honest.
EAGER_ENSEMBLE = tuple(
    replace(member, attention="eager") for member in ENSEMBLE if member.name != "sdpa"
)


#: By ways of computing, where the other side of ties is taken. Up to a write an engine computes
#: the same in the clean and the edited run; after it the two may be on different sides.
TIES = {
    "eager": Ties.OTHER,
    "split": Ties.OTHER,
    "fused": Ties.OTHER_AFTER_WRITE,
    "fused_split": Ties.OTHER_UNTIL_WRITE,
}


def with_ties(ensemble: tuple[Member, ...]) -> tuple[Member, ...]:
    """The ensemble of a model whose layers choose among experts: half of it takes the one side
    of a near-tie and half the other, since either is as likely in an honest run.
    """
    kept = [one for one in ensemble if one.name in TIES]
    return tuple(
        member
        for one in kept
        for member in (one, replace(one, name=one.name + OTHER_SIDE, ties=TIES[one.name]))
    )


@contextmanager
def split_reductions(module: Any) -> Iterator[None]:
    """Compute every projection back to the model's width as the sum of two halves, each
    rounded to bf16: the order of addition that two tensor-parallel ranks have. Experts, which
    hold no projections of their own, likewise.
    """
    width = module.config.get_text_config().hidden_size
    handles = []

    def halves(layer: Any, args: tuple[Tensor, ...], output: Tensor) -> Tensor:
        value = args[0]
        weight = layer.weight if isinstance(layer, Linear) else layer.weight.T
        middle = weight.shape[1] // 2
        left = linear(value[..., :middle], weight[:, :middle])
        right = linear(value[..., middle:], weight[:, middle:])
        total = left + right
        bias = getattr(layer, "bias", None)
        return total if bias is None else total + bias

    for layer in module.modules():
        if type(layer).__name__ in {"Linear", "Conv1D"}:
            shape = layer.weight.shape
            out = shape[0] if isinstance(layer, Linear) else shape[1]
            if out == width:
                handles.append(layer.register_forward_hook(halves))
    experts = {layer: in_halves(layer) for layer in module.modules() if is_experts(layer)}
    try:
        with exchanged(experts):
            yield
    finally:
        for handle in handles:
            handle.remove()


def score_caps(module: Module) -> dict[Any, float]:
    """The attention modules that cap their scores, with the cap."""
    name = "attn_logit_softcapping"
    return {
        child: cap for child in module.modules() if (cap := getattr(child, name, None)) is not None
    }


@contextmanager
def uncapped(module: Module) -> Iterator[None]:
    """Without the soft cap of the attention scores, so that eager and sdpa can be compared."""
    caps = score_caps(module)
    for child in caps:
        child.attn_logit_softcapping = None
    try:
        yield
    finally:
        for child, cap in caps.items():
            child.attn_logit_softcapping = cap
