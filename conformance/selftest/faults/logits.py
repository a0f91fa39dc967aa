"""Faults at the ends of a run: the logits, the chosen token, the request for it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.records import Side, Verdict
from conformance.selftest.fault import VLLM, Fault, Moment, Point

WRONG = frozenset({Verdict.WRONG})
CLEAN = ("clean.pair",)


def with_cap(value: Tensor, now: Moment) -> Tensor:
    """Apply a soft cap of `dose` times the largest logit, which the other side does not have."""
    cap = now.dose * value.float().abs().max()
    capped: Tensor = cap * torch.tanh(value.float() / cap)
    return capped.to(value.dtype)


def scaled(value: Tensor, now: Moment) -> Tensor:
    return value * now.dose


def shifted(value: Tensor, now: Moment) -> Tensor:
    return value.float() + now.dose


def int32(value: Tensor, now: Moment) -> Tensor:
    return value.to(torch.int32)


def another(value: Tensor, now: Moment) -> Tensor:
    """Return another id."""
    return (value + int(now.dose)) % 500


def nothing_asked(how: Any, now: Moment) -> Any:
    return None


def _fault(name: str, act: Any, point: Point = Point.LOGITS, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.NNSIGHT,
        "cases": CLEAN,
        "verdicts": WRONG,
    }
    return Fault(id=name, act=act, point=point, **(defaults | more))


FAULTS = (
    _fault(
        "logits-place",
        with_cap,
        doses=(4.0, 1.0),
        verdicts=frozenset({Verdict.WRONG, Verdict.DRIFT}),
        summary="The logits carry a soft cap that the other side's have not.",
    ),
    _fault(
        "logits-scale",
        scaled,
        doses=(0.0625, 1.5),
        says=("times the right", "multiple of the right", "embedding's"),
        quick=True,
        summary="The logits are multiplied by a constant.",
    ),
    _fault(
        "logits-shift",
        shifted,
        doses=(0.5, 8.0),
        quick=True,
        summary="A constant is added to all logits.",
    ),
    _fault(
        "samples-dtype",
        int32,
        Point.CHOICE,
        verdicts=frozenset({Verdict.DTYPE}),
        cases=("clean.pair", "multigen.read"),
        summary="Sampled ids are int32, not int64.",
    ),
    _fault(
        "token-other",
        another,
        Point.CHOSEN,
        doses=(1.0,),
        cases=("clean.alone",),
        quick=True,
        summary="The id that is reported is not the one that was chosen.",
    ),
    _fault(
        "defaults",
        nothing_asked,
        Point.ASKED,
        backends=VLLM,
        verdicts=frozenset({Verdict.WRONG, Verdict.STRUCTURE, Verdict.MISSING}),
        summary=(
            "A generation is asked for without parameters: vLLM then draws 16 tokens "
            "at temperature 1."
        ),
    ),
)
