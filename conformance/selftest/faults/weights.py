"""Faults of the weights that an engine loads: a changed copy of the checkpoint."""

from __future__ import annotations

import re
from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.records import Side, Verdict
from conformance.selftest.fault import Fault, Moment, Point

OFF = frozenset({Verdict.WRONG, Verdict.DRIFT})
CASES = ("clean.pair", "read_all.pair")
_LAYER = re.compile(r"(.*\.)(\d+)(\..*)")


def quantised(weights: Mapping[str, Tensor], now: Moment) -> dict[str, Tensor]:
    """Round every matrix of the layers to int8, with one scale per row."""
    return {
        name: _int8(value) if value.ndim == 2 and _LAYER.fullmatch(name) else value
        for name, value in weights.items()
    }


def _int8(value: Tensor) -> Tensor:
    step = value.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
    return ((value.float() / step).round() * step).to(value.dtype)


def neighbours(weights: Mapping[str, Tensor], now: Moment) -> dict[str, Tensor]:
    """Give the second layer the third one's weights."""
    changed = dict(weights)
    for name in weights:
        match = _LAYER.fullmatch(name)
        if match and match.group(2) == "1":
            changed[name] = weights[f"{match.group(1)}2{match.group(3)}"].clone()
    return changed


def no_final_norm(weights: Mapping[str, Tensor], now: Moment) -> dict[str, Tensor]:
    """Set the weights of every norm outside the layers to 2."""
    return {
        name: torch.ones_like(value) * 2
        if value.ndim == 1 and not _LAYER.fullmatch(name) and name.endswith("weight")
        else value
        for name, value in weights.items()
    }


def _fault(name: str, act: object, verdicts: frozenset[Verdict] = OFF, *, summary: str) -> Fault:
    return Fault(
        id=name,
        summary=summary,
        side=Side.ENGINE,
        point=Point.CHECKPOINT,
        act=act,  # type: ignore[arg-type]
        cases=CASES,
        verdicts=verdicts,
        alone=True,
    )


FAULTS = (
    _fault(
        "drift",
        quantised,
        summary="The matrices of all layers are rounded to int8.",
    ),
    # The error is so large that no reading of the probe prompt is the stream; that is reported.
    _fault(
        "layer-weights",
        neighbours,
        OFF | {Verdict.STRUCTURE},
        summary="The second layer has the third one's weights.",
    ),
    _fault(
        "final-norm",
        no_final_norm,
        summary="The final norm's weights are lost.",
    ),
)
