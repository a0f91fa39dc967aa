"""Faults inside a layer's attention: a block sees another query, key, value or heads."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from conformance.records import Side, Verdict
from conformance.selftest.fault import Fault, Inexpressible, Moment, Point

HEADS = ("heads.read",)
QKV = ("qkv.read",)
PLACES = ("first", "last")


def _acts(now: Moment, *parts: str) -> bool:
    return now.acts_here and now.raw()[0] in parts


def neighbour(value: Tensor, now: Moment) -> Tensor:
    """Replace each head by the previous one."""
    return value.roll(1, dims=1) if _acts(now, "heads") else value


def another_rank(value: Tensor, now: Moment) -> Tensor:
    """Swap the halves of the heads that two ranks hold."""
    return value.roll(value.shape[1] // 2, dims=1) if _acts(now, "heads") else value


def one_rank(value: Tensor, now: Moment) -> Tensor:
    """Use the first rank's heads for both ranks."""
    if not _acts(now, "heads"):
        return value
    half = value[:, : value.shape[1] // 2]
    return half.repeat(1, 2, 1)


def key_for_value(value: Tensor, now: Moment) -> Tensor:
    part = now.raw()[0]
    if part == "key":
        now.memory["key", now.layer] = value
    if not _acts(now, "value"):
        return value
    if ("key", now.layer) not in now.memory:
        raise Inexpressible("the value is read before the key")
    key: Tensor = now.memory["key", now.layer]
    return key.clone()


def other_group(value: Tensor, now: Moment) -> Tensor:
    """Return the key of another group of heads."""
    if value.shape[1] < 2:
        raise Inexpressible("all heads have one key")
    return value.roll(1, dims=1) if _acts(now, "key") else value


def by_stride(value: Tensor, now: Moment) -> Tensor:
    """Take the columns by head although they are stored in blocks."""
    if not _acts(now, "query"):
        return value
    tokens, heads, width = value.shape
    return value.reshape(tokens, width, heads).transpose(1, 2).contiguous()


def before_norm(value: Tensor, now: Moment) -> Tensor:
    """Imitate a query before its norm: change the length of each head."""
    if not _acts(now, "query"):
        return value
    longer = value.float().norm(dim=-1, keepdim=True).mean(dim=1, keepdim=True)
    order = value.float().norm(dim=-1, keepdim=True).flip(1)
    changed: Tensor = (value * (order / longer + 0.5)).to(value.dtype)
    return changed


def _fault(
    name: str, act: Any, cases: tuple[str, ...], says: tuple[str, ...], **more: Any
) -> Fault:
    return Fault(
        name,
        Side.NNSIGHT,
        Point.HELD,
        act,
        cases,
        frozenset({Verdict.WRONG}),
        says=says,
        places=PLACES,
        parts=("heads",) if cases == HEADS else ("qkv",),
        **more,
    )


FAULTS = (
    _fault(
        "head-neighbour",
        neighbour,
        HEADS,
        (),
        quick=True,
        summary="Each attention head is read as the one before it.",
    ),
    _fault(
        "head-rank-swapped",
        another_rank,
        HEADS,
        (),
        summary="The heads of two ranks have changed places.",
    ),
    _fault(
        "head-rank-half",
        one_rank,
        HEADS,
        ("row of the token",),
        summary="The heads of one rank stand for those of the other one too.",
    ),
    _fault(
        "key-for-value",
        key_for_value,
        QKV,
        ("the value of 'key'",),
        summary="What is read as a layer's value is its key.",
    ),
    _fault(
        "key-other-group",
        other_group,
        QKV,
        (),
        summary="Of grouped heads each key is that of another group.",
    ),
    _fault(
        "query-by-stride",
        by_stride,
        QKV,
        (),
        summary=(
            "The query's columns are taken by head, as GPT-NeoX holds them, where "
            "they are in blocks."
        ),
    ),
    _fault(
        "query-before-norm",
        before_norm,
        QKV,
        (),
        summary="A query has not the length that its norm gives it.",
    ),
)
