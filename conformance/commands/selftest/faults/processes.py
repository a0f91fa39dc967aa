"""Faults of the process, its weights and its options, and changes that must not be flagged."""

from __future__ import annotations

import importlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from conformance.commands.selftest.fault import VLLM, FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.forward import CASES, OFF
from conformance.commands.selftest.faults.model import layer
from conformance.spec.records import Precision, Side, Verdict

_LAYER = re.compile(r"(.*\.)(\d+)(\..*)")
Weights = Mapping[str, Tensor]

CASE = FaultFamily(side=Side.ENGINE, point=Point.CASE, cases="clean.pair", alone=True, short=True)
CHECKPOINT = FaultFamily(
    side=Side.ENGINE,
    point=Point.CHECKPOINT,
    cases=CASES,
    verdicts=OFF,
    alone=True,
)


@CASE.fault("crash", verdicts=Verdict.CRASH, quick=True)
def abort(value: Any, now: Moment) -> None:
    """The worker aborts."""
    os.abort()


@CASE.fault("hang", verdicts=Verdict.TIMEOUT)
def hang(value: Any, now: Moment) -> None:
    """The worker loops for ever."""
    while True:
        time.sleep(0.05)


@CASE.fault("exit", verdicts=Verdict.MISSING)
def leave(value: Any, now: Moment) -> None:
    """The worker leaves with exit status 0 before it is done."""
    os._exit(0)


# Neither a killed process nor its engine caused the failure.
@CASE.fault("oom", verdicts=Verdict.CRASH, side=Side.UNDECIDED)
def killed(value: Any, now: Moment) -> None:
    """The worker is killed, as for want of memory."""
    os.kill(os.getpid(), signal.SIGKILL)


@CASE.fault(
    "runner-v2",
    side=Side.NNSIGHT,
    point=Point.LOAD,
    verdicts=(Verdict.ERROR, Verdict.TIMEOUT, Verdict.CRASH),
    met="vLLM-Hook #33: after an upgrade no hook fired",
)
def no_hook(now: Moment) -> None:
    """No hook fires: another model runner is in place of the one that nnsight instruments."""
    # Imported by name: the parent also reads this module, and has no engine installed.
    module = importlib.import_module("nnsight.intervention.interleaver")
    module.Interleaver.handle = lambda _self, _provider, value: value


@CASE.fault(
    "library-changed",
    side=Side.NNSIGHT,
    point=Point.LIBRARY,
    backends="hf",
    verdicts=Verdict.ERROR,
    short=False,
)
def file_changed(library: Path) -> None:
    """A file of nnsight changes and its version does not, after the cache has what it gave."""
    changed = (
        "\n\ndef _changed(*_):\n    raise RuntimeError('another file than was installed')\n\n\n"
        "Interleaver.handle = _changed\n"
    )
    with (library / "intervention" / "interleaver.py").open("a", encoding="utf-8") as file:
        file.write(changed)


@CASE.fault(
    "backend-switch",
    point=Point.PATH,
    cases="read_all.pair",
    verdicts=Verdict.ERROR,
    alone=False,
    short=False,
    quick=True,
)
def renamed(path: str, now: Moment) -> str:
    """The list of layers has another path than the scenario's block takes."""
    return f"{path}_renamed"


@CASE.fault("bad-start", point=Point.CHECKPOINT, verdicts=Verdict.ERROR, quick=True)
def bad_start(weights: Weights, now: Moment) -> dict[str, Tensor]:
    """The weights of a layer have another shape: the engine does not start."""
    return {
        name: value[:-1] if value.ndim == 2 and ".1." in name else value
        for name, value in weights.items()
    }


@CHECKPOINT.fault("drift")
def quantised(weights: Weights, now: Moment) -> dict[str, Tensor]:
    """The matrices of all layers are rounded to int8."""
    return {
        name: _int8(value) if value.ndim == 2 and _LAYER.fullmatch(name) else value
        for name, value in weights.items()
    }


def _int8(value: Tensor) -> Tensor:
    """Round to int8 with one scale per row."""
    step = value.float().abs().amax(dim=1, keepdim=True).clamp_min(1e-12) / 127
    return ((value.float() / step).round() * step).to(value.dtype)


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
_ROTARY = {"rope_type": "default", "rope_theta": 50000.0, "partial_rotary_factor": 0.5}
OPTIONS.add(
    "longrope-factors",
    unchanged,
    "Rotary positions are not stretched by the factors of the config.",
    cases=CASES,
    architectures="phi3",
    # The error is so large that no reading of the probe prompt is the stream; that is reported.
    verdicts=(*OFF, Verdict.STRUCTURE),
    options={"hf_overrides": {"rope_parameters": _ROTARY}},
)
# vLLM computes this model in bf16 alone on a CPU, so that nothing in float32 shows them.
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
        verdicts=(Verdict.WRONG,),
        architectures="qwen3_next",
        options={"hf_overrides": _changed},
        precision=Precision.BF16,
    )
