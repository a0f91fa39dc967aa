"""The baseline runs of a reference: which exist, and how each is computed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import Module

from conformance.spec.generated_tokens import FLOAT32_WAY

#: The attribute of an attention module that caps its scores.
CAP = "attn_logit_softcapping"


@dataclass(frozen=True)
class EnsembleMember:
    """One way to compute the reference. `pad` rows of padding precede the prompt, which is batched
    with a longer one; `split` adds each branch's last projection in halves, as two tensor-parallel
    ranks do; `fused` rounds norms, activations and gates once; `at_once` computes all steps of a
    given generation in one forward.
    """

    name: str
    dtype: torch.dtype
    attention: str
    pad: int = 0
    split: bool = False
    fused: bool = False
    at_once: bool = False


REFERENCE_RUN = EnsembleMember("truth", torch.float32, "eager")
#: The bf16 baseline runs: transformers' roundings and those of fused kernels count equally. Where
#: SmolLM2's massive activation arises (layer 9) they are further from each other than from the
#: reference. They are ordered by attention, because switching it walks the whole model. Some
#: compute one step at a time, as a generating engine does, and some all at once.
BF16 = (
    EnsembleMember("eager", torch.bfloat16, "eager"),
    EnsembleMember("padded", torch.bfloat16, "sdpa", pad=5, at_once=True),
    EnsembleMember("fused", torch.bfloat16, "sdpa", fused=True),
    EnsembleMember("fused_split", torch.bfloat16, "sdpa", split=True, fused=True, at_once=True),
)
#: The float32 baseline runs: other attention, orders of addition and shapes.
FLOAT32 = (
    EnsembleMember(f"{FLOAT32_WAY}split", torch.float32, "eager", split=True),
    EnsembleMember(f"{FLOAT32_WAY}sdpa", torch.float32, "sdpa", at_once=True),
    EnsembleMember(f"{FLOAT32_WAY}padded", torch.float32, "sdpa", pad=5, at_once=True),
)


def members(*, sdpa: bool) -> tuple[EnsembleMember, ...]:
    """Return the baseline runs of a model. Without `sdpa`, all use eager attention: for a model
    that supports no other, or one that caps its attention scores, since transformers' sdpa silently
    ignores the cap (Gemma-2).
    """
    every = (*FLOAT32, *BF16)
    if sdpa:
        return tuple(sorted(every, key=lambda member: member.attention))
    eager = (replace(member, attention="eager") for member in every)
    return tuple(member for member in eager if member.name != f"{FLOAT32_WAY}sdpa")


def score_caps(module: Module) -> dict[Any, float]:
    """Return the attention modules that cap their scores, with the cap."""
    caps = {child: getattr(child, CAP, None) for child in module.modules()}
    return {child: cap for child, cap in caps.items() if cap is not None}


def has_sdpa(module: Module) -> bool:
    """Return whether sdpa computes what eager attention does."""
    return bool(getattr(module, "_supports_sdpa", False)) and not score_caps(module)
