"""Checks made before any number is compared: presence, shape, dtype, finiteness.

Each function returns a description of what is wrong, "" if nothing is.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

import torch
from torch import Tensor

from conformance.spec.records import Precision, Relation, Site

#: The relation that is checked first.
PROMPT_IDS = "prompt token ids equal on both sides"

Ids = tuple[tuple[int, ...], ...]


def prompt_ids(candidate: Ids, reference: Ids) -> Relation:
    """Check that both sides tokenized the prompts to the same ids."""
    wrong = [
        f"prompt {index}: {_difference_of_ids(left, right)}"
        for index, (left, right) in enumerate(zip_longest(candidate, reference, fillvalue=()))
        if left != right
    ]
    return Relation(PROMPT_IDS, not wrong, "; ".join(wrong))


def _difference_of_ids(candidate: tuple[int, ...], reference: tuple[int, ...]) -> str:
    # Equal lengths are not mentioned: the ids differ.
    counts = f"{len(candidate)} ids instead of {len(reference)}, "
    counts = counts if len(candidate) != len(reference) else ""
    if candidate[1:] == reference:
        return f"{counts}an extra first token {candidate[0]}"
    if candidate == reference[1:]:
        return f"{counts}the first token {reference[0]} is missing"
    pairs = zip_longest(candidate, reference, fillvalue="nothing")
    at, (left, right) = next((i, pair) for i, pair in enumerate(pairs) if pair[0] != pair[1])
    return f"{counts}at position {at} {left} instead of {right}"


def shape(candidate: Tensor, reference: Tensor) -> str:
    """Return how the candidate's shape differs from the reference's."""
    own_shape, reference_shape = tuple(candidate.shape), tuple(reference.shape)
    if own_shape == reference_shape:
        return ""
    message = f"shape {list(own_shape)} instead of {list(reference_shape)}"
    if len(own_shape) != len(reference_shape):
        return f"{message}: {len(own_shape)} dimensions instead of {len(reference_shape)}"
    if len(own_shape) > 1 and own_shape[1:] == reference_shape[1:]:
        few = "fewer" if own_shape[0] < reference_shape[0] else "more"
        return f"{message}: {abs(own_shape[0] - reference_shape[0])} {few} rows than tokens"
    return message


def dtype(
    candidate: Tensor, baseline: Sequence[Tensor], site: Site, precision: Precision = Precision.BF16
) -> str:
    """Check that the baseline runs have the candidate's dtype here; return what is wrong.

    Logits may be float32: engines sample from float32. Everything else that bf16 baseline runs hold
    in bf16 must be bf16. The message says which precision the values carry, which distinguishes a
    mere cast from another computation.
    """
    allowed = {run.dtype for run in baseline}
    if candidate.dtype in allowed:
        return ""
    floating = any(kind.is_floating_point for kind in allowed)
    if floating and candidate.dtype == getattr(torch, precision.dtype):
        return ""
    if site.name == "logits" and candidate.dtype == torch.float32:
        return ""
    names = " or ".join(sorted(short(kind) for kind in allowed))
    message = f"{short(candidate.dtype)} instead of {names}"
    if floating and candidate.is_floating_point():
        only_bf16 = torch.equal(candidate.to(torch.bfloat16).to(candidate.dtype), candidate)
        message += f"; the values carry {'only' if only_bf16 else 'more than'} bf16 precision"
    return message


def short(kind: torch.dtype) -> str:
    return str(kind).removeprefix("torch.")


def is_text(value: Tensor) -> bool:
    """Return whether an observation is a text: an error message, stored as uint8 bytes."""
    return value.dtype is torch.uint8 and value.ndim == 1


def other_text(candidate: Tensor, reference: Tensor) -> str:
    """Return how a text differs from the reference's."""
    if torch.equal(candidate, reference):
        return ""
    own, right = (bytes(v.tolist()).decode(errors="replace") for v in (candidate, reference))
    return f"says {own!r} instead of {right!r}"


def finite(candidate: Tensor) -> str:
    """Say how many values are not finite, and where the first is."""
    if not candidate.is_floating_point():
        return ""
    if math.isfinite(candidate.sum(dtype=torch.float64)):  # one nan or inf makes the sum one
        return ""
    bad = ~torch.isfinite(candidate)
    count = int(bad.sum())
    if not count:
        return ""
    first = torch.nonzero(bad)[0].tolist()
    return f"{count} of {candidate.numel()} values are not finite, the first at {first}"


#: What an entry of a float tensor may be.
_KINDS = ("a number", "nan", "inf", "-inf")


def kinds(values: Tensor) -> Tensor:
    """Classify each entry as a number (0), nan (1), inf (2) or -inf (3): int8, same shape."""
    found = torch.isnan(values).to(torch.int8)
    found[torch.isposinf(values)] = 2
    found[torch.isneginf(values)] = 3
    return found


def other_kinds(candidate: Tensor, reference: Tensor) -> str:
    """Say how many entries differ in kind from the reference's `kinds`, and where the first is."""
    found = kinds(candidate)
    other = found != reference
    if not bool(other.any()):
        return ""
    first = torch.nonzero(other)[0].tolist()
    here, there = (_KINDS[int(side[tuple(first)])] for side in (found, reference))
    begin = f"{int(other.sum())} of {candidate.numel()} values are no numbers on one side alone"
    return f"{begin}, the first at {first}: {here} where the reference has {there}"
