"""Changes that must not be flagged: none, a repetition, or another correct computation."""

from __future__ import annotations

from typing import Any

from torch import nn

from conformance.records import Precision, Side, Verdict
from conformance.selftest.fault import Fault, Inexpressible, Moment, Point
from conformance.selftest.faults.model import layer

PASSES = frozenset({Verdict.EXACT, Verdict.MATCH})
CASES = ("clean.pair", "read_all.pair", "steering.middle-small-one", "ablation.middle")


def nothing(value: Any, now: Moment) -> Any:
    return value


def rounded_before_norm(model: nn.Module, now: Moment) -> list[Any]:
    """Add the two summands in bf16 before the fused norm, not in float32 inside it."""

    def add(module: Any, args: Any) -> Any:
        if len(args) < 2 or args[1] is None or args[0].shape != args[1].shape:
            return None
        return (args[0] + args[1], args[1].new_zeros(args[1].shape), *args[2:])

    handles = []
    for index in range(now.layers):
        part = layer(model, index, now.layers)
        norms = [child for name, child in part.named_children() if "norm" in name] if part else []
        handles += [norm.register_forward_pre_hook(add) for norm in norms]
    if not handles:
        raise Inexpressible("no norm of the layers takes two summands")
    return handles


FAULTS = (
    Fault(
        id="repeat",
        side=Side.HARNESS,
        point=Point.NOWHERE,
        act=nothing,
        cases=(*CASES, "multigen.cross"),
        verdicts=PASSES,
        silent=True,
        quick=True,
        summary="Nothing: the same cell is observed a second time.",
    ),
    Fault(
        id="noise-only",
        side=Side.ENGINE,
        point=Point.FORWARD,
        act=rounded_before_norm,
        cases=CASES,
        verdicts=PASSES,
        backends=("vllm-pp1", "vllm-pp2"),
        architectures=("llama",),
        silent=True,
        quick=True,
        precision=Precision.BF16,
        summary=(
            "The two summands of the stream are added in bf16 before the fused norm, "
            "not in float32 inside it: an allowed rounding."
        ),
    ),
    Fault(
        id="eager-attention",
        side=Side.ENGINE,
        point=Point.NOWHERE,
        act=nothing,
        cases=CASES,
        verdicts=PASSES,
        backends=("hf",),
        silent=True,
        alone=True,
        quick=True,
        options={"attn_implementation": "eager"},
        summary=("transformers computes attention by its eager implementation: a baseline run."),
    ),
)
