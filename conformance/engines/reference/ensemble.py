"""The honest ways of computing a reference: which there are, and how each is switched on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.nn import Module

from conformance.engines.reference.fused import fused_forwards
from conformance.engines.reference.patched_forward import Forwards
from conformance.engines.reference.split import split_forwards
from conformance.generated_tokens import FLOAT32_WAY


@dataclass(frozen=True)
class Member:
    """One way to compute the reference. `pad` rows of padding go in front of the prompt,
    in a batch with a longer one; `split` adds the branches' last projections up in halves,
    as two tensor-parallel ranks do; `fused` rounds norms, activations and gates once; `at_once`
    computes the steps of a generation that it is held to in one forward.
    """

    name: str
    dtype: torch.dtype
    attention: str
    pad: int = 0
    split: bool = False
    fused: bool = False
    at_once: bool = False


TRUTH = Member("truth", torch.float32, "eager")
#: Honest bf16 runs: transformers' own roundings and those of fused kernels weigh alike. Where
#: SmolLM2's massive activation arises (layer 9) the two are further from each other than from the
#: truth. In order of their attention, because switching it walks the whole model. Some compute one
#: step after the other, as an engine that generates does, and some all at once.
BF16 = (
    Member("eager", torch.bfloat16, "eager"),
    Member("padded", torch.bfloat16, "sdpa", pad=5, at_once=True),
    Member("fused", torch.bfloat16, "sdpa", fused=True),
    Member("fused_split", torch.bfloat16, "sdpa", split=True, fused=True, at_once=True),
)
#: Other ways to the truth: another attention, other orders of addition, another shape.
FLOAT32 = (
    Member(f"{FLOAT32_WAY}split", torch.float32, "eager", split=True),
    Member(f"{FLOAT32_WAY}sdpa", torch.float32, "sdpa", at_once=True),
    Member(f"{FLOAT32_WAY}padded", torch.float32, "sdpa", pad=5, at_once=True),
)


def members(*, sdpa: bool) -> tuple[Member, ...]:
    """The ways to compute a model. Without `sdpa` all attend eagerly: for a model that has no
    other attention, and for one that caps its attention scores, where transformers' sdpa leaves
    the cap out without a word (Gemma-2) and is not honest.
    """
    every = (*FLOAT32, *BF16)
    if sdpa:
        return tuple(sorted(every, key=lambda member: member.attention))
    eager = (replace(member, attention="eager") for member in every)
    return tuple(member for member in eager if member.name != f"{FLOAT32_WAY}sdpa")


def other_forwards(model: Any, *, split: bool, fused: bool) -> Forwards:
    """Return the forwards of the modules that a baseline run computes differently.

    They take the place of the modules' own forwards, so a hook or a trace reads and writes the
    inputs and outputs of a module as it does in the reference.
    """
    splits = split_forwards(model) if split else {}
    return {**splits, **(fused_forwards(model) if fused else {})}


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
