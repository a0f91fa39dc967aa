"""Faults of the parts of a layer: a block sees another input, branch, query, key, value or heads.

Query, key, value and heads are [tokens, heads, width]. `Moment.raw` names them in its first value.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.commands.selftest.fault import VLLM, FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.operators import scaled, shifted
from conformance.commands.selftest.faults.reads import EVERY, overwritten
from conformance.spec.records import Side, Verdict

INPUT = FaultFamily(
    side=Side.NNSIGHT,
    point=Point.INPUT,
    cases="accessors.input",
    verdicts=Verdict.WRONG,
    places=("middle", "last"),
)
PART = FaultFamily(
    side=Side.NNSIGHT, point=Point.PART, verdicts=Verdict.WRONG, places=("first", "last")
)
HEADS = FaultFamily(**PART.common | {"point": Point.HELD, "cases": "heads.read", "parts": "heads"})
QKV = FaultFamily(**HEADS.common | {"cases": "qkv.read", "parts": "qkv"})


@INPUT.fault("input-positions", verdicts=Verdict.STRUCTURE, places=EVERY, quick=True)
def position_ids(value: Tensor, now: Moment) -> Tensor:
    """A layer's input is the integer positions, the first positional argument of vLLM's layers."""
    return torch.arange(len(value))


@INPUT.fault("input-half", backends=VLLM)
def half_input(value: Tensor, now: Moment) -> Any:
    """A layer's input is one of the two summands that the layer was given."""
    arguments = [*now.raw()[0], *now.raw()[1].values()]
    rows = [part for part in arguments if isinstance(part, Tensor) and part.shape == value.shape]
    if len(rows) < 2 or torch.equal(rows[0], value):
        raise Inexpressible("a layer is given the whole stream")
    return rows[0].clone()


@INPUT.fault("raw-input-rows", cases="raw.input", point=Point.ARGUMENTS)
def shifted_once(value: Any, now: Moment) -> Any:
    """A layer's `input` is handed out once with its rows shifted by one token, and right after."""
    asked = now.memory.setdefault("asked", set())
    if now.layer in asked:
        return value
    asked.add(now.layer)
    positional, named = value
    return tuple(map(_shifted, positional)), {key: _shifted(part) for key, part in named.items()}


def _shifted(part: Any) -> Any:
    """Shift an argument with rows of the width: [..., tokens, width]."""
    if not (isinstance(part, Tensor) and part.is_floating_point() and part.ndim in {2, 3}):
        return part
    return part.roll(1, dims=-2)


@PART.fault("norm-tuple", cases="accessors.norm", verdicts=Verdict.STRUCTURE, places="")
def in_tuple(value: Tensor, now: Moment) -> Any:
    """The final norm gives a tuple (normalised, residual) in place of a tensor."""
    return value, value


PART.add(
    "rowparallel-tuple",
    in_tuple,
    "A branch gives a tuple (output, bias) in place of a tensor.",
    cases=("accessors.mlp", "accessors.attention"),
    verdicts=Verdict.STRUCTURE,
)
PART.add(
    "embedding-off",
    shifted,
    "The rows of what a part takes or gives are shifted by one token.",
    cases=(
        *("accessors.embedding", "accessors.attention_input"),
        *("accessors.attention", "accessors.mlp_input"),
    ),
    doses=1,
    places="",
)


PART.add(
    "known-branch",
    scaled,
    "A branch is multiplied by a constant, where known.yaml predicts another definition of it.",
    side=Side.UNDECIDED,  # the engine without nnsight differs from the reference too
    cases=("accessors.attention", "accessors.mlp"),
    doses=(0.0, 0.5, -1.0),
    architectures="bloom",
    backends=VLLM,
)


@PART.fault("router-tie", cases="router.all", parts="experts", places=("middle", "last"))
def tie_broken(value: Tensor, now: Moment) -> Tensor:
    """The two best experts of one token change places."""
    scores = value.clone()
    best = scores[-1].topk(2).indices
    scores[-1, best] = value[-1, best.flip(0)]
    return scores


PART.add(
    "alias-live",
    overwritten,
    "A branch's output, saved without a copy, is overwritten by a later one.",
    point=Point.LIVE,
    cases=("save_alias.mlp", "save_alias.attention"),
    verdicts=(Verdict.ALIASED, Verdict.WRONG),
    places="",
    quick=True,
    met="nnsight on vLLM: the fused norm writes over what was saved",
)


@HEADS.fault("head-neighbour", quick=True)
def neighbour(value: Tensor, now: Moment) -> Tensor:
    """Each attention head is read as the one before it."""
    return value.roll(1, dims=1)


@HEADS.fault("head-rank-half", says="row of the token")
def one_rank(value: Tensor, now: Moment) -> Tensor:
    """The heads of one rank stand for those of the other one too."""
    if value.shape[1] % 2:
        raise Inexpressible("an odd number of heads has no half")
    return value[:, : value.shape[1] // 2].repeat(1, 2, 1)


@QKV.fault("key-for-value", says="the value of 'key'")
def key_for_value(value: Tensor, now: Moment) -> Tensor:
    """Return a layer's key where its value is read."""
    part = now.raw()[0]
    if part == "key":
        now.memory["key"] = value
    if part != "value":
        return value
    if "key" not in now.memory:
        raise Inexpressible("the value is read before the key")
    key: Tensor = now.memory["key"]
    return key.clone()


# The probabilities recomputed from queries and keys must show it too.
@QKV.fault("key-other-group", cases=("qkv.read", "pattern.all"), places="first")
def other_group(value: Tensor, now: Moment) -> Tensor:
    """Of grouped heads each key is that of another group."""
    if value.shape[1] < 2:
        raise Inexpressible("all heads have one key")
    return value.roll(1, dims=1) if now.raw()[0] == "key" else value


@QKV.fault("query-before-norm", places="first")
def before_norm(value: Tensor, now: Moment) -> Tensor:
    """A query does not have the length that its norm gives it."""
    if now.raw()[0] != "query":
        return value
    length = value.float().norm(dim=-1, keepdim=True)
    share = length.flip(1) / length.mean(dim=1, keepdim=True) + 0.5
    changed: Tensor = (value * share).to(value.dtype)
    return changed


@QKV.fault("query-after-rotary", cases=("qkv.read", "pattern.all"), places="last")
def after_rotary(value: Tensor, now: Moment) -> Tensor:
    """A query is read after rotary positions."""
    if now.raw()[0] != "query":
        return value
    tokens, _, width = value.shape
    frequencies = 10_000.0 ** -(torch.arange(0, width, 2, device=value.device) / width)
    angles = torch.arange(tokens, device=value.device)[:, None, None] * frequencies
    one, other = value.float().chunk(2, dim=-1)
    turned = torch.polar(torch.ones_like(angles), angles) * torch.complex(one, other)
    return torch.cat([turned.real, turned.imag], dim=-1).to(value.dtype)
