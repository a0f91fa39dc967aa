"""Changes that must not be flagged, and faults that only open the engine with other options."""

from __future__ import annotations

from typing import Any

from torch import nn

from conformance.commands.selftest.fault import VLLM, FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.forward import CASES, OFF
from conformance.commands.selftest.faults.model import layer
from conformance.spec.records import Precision, Side, Verdict

OPTIONS = FaultFamily(
    side=Side.ENGINE, point=Point.NOWHERE, verdicts=OFF, backends=VLLM, alone=True
)
#: None, a repetition, or another correct computation.
QUIET = FaultFamily(
    side=Side.ENGINE,
    point=Point.NOWHERE,
    cases=(*CASES, "steering.middle-small-one", "ablation.middle"),
    verdicts=(Verdict.EXACT, Verdict.MATCH),
    silent=True,
    quick=True,
)
FAMILIES = (QUIET, OPTIONS)


def unchanged(value: Any, now: Moment) -> Any:
    return value


QUIET.add(
    "repeat",
    unchanged,
    "Nothing: the same cell is observed a second time.",
    side=Side.HARNESS,
    cases=(*QUIET.common["cases"], "multigen.cross"),
)
QUIET.add(
    "eager-attention",
    unchanged,
    "transformers computes attention by its eager implementation: a baseline run.",
    backends="hf",
    alone=True,
    options={"attn_implementation": "eager"},
)


@QUIET.fault(
    "noise-only",
    point=Point.FORWARD,
    backends=VLLM,
    architectures="llama",
    precision=Precision.BF16,
)
def rounded_before_norm(model: nn.Module, now: Moment) -> list[Any]:
    """The two summands of the stream are added in bf16 before the fused norm, not in float32 inside
    it: an allowed rounding.
    """

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


OPTIONS.add(
    "softcap-window",
    unchanged,
    "The sliding window of attention is ignored.",
    cases="long_context.all",
    parts="long",
    options={"hf_overrides": {"sliding_window": 4096}},
)
_UNSTRETCHED = {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5}
OPTIONS.add(
    "longrope-factors",
    unchanged,
    "Rotary positions are not stretched by the factors of the config.",
    cases=CASES,
    architectures="phi3",
    # The error is so large that no reading of the probe prompt is the stream; that is reported.
    verdicts=(*OFF, Verdict.STRUCTURE),
    options={"hf_overrides": {"rope_parameters": _UNSTRETCHED}},
)
# vLLM computes this model in bf16 alone on a CPU, so that nothing in float32 shows them.
_ROTARY = {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5}
for _name, _changed, _summary in (
    ("experts-one", {"num_experts_per_tok": 1}, "A token has one expert, not two"),
    ("experts-three", {"num_experts_per_tok": 3}, "A token has three experts, not two"),
    (
        "rotary-full",
        {"rope_parameters": _ROTARY | {"partial_rotary_factor": 1.0}},
        "Rotary positions turn whole heads, not half of them",
    ),
    (
        "rotary-theta",
        {"rope_parameters": _ROTARY | {"rope_theta": 10000.0}},
        "Rotary positions have another base",
    ),
):
    OPTIONS.add(
        f"{_name}-bf16",
        unchanged,
        f"{_summary}, in bf16 alone.",
        side=Side.UNDECIDED,  # nothing else confirms the reference's definition of this model
        cases="read_all.pair",
        architectures="qwen3_next",
        options={"hf_overrides": _changed},
        precision=Precision.BF16,
    )
