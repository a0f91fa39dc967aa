"""Faults of the process and of the weights that it loads: it dies, hangs, or does not start."""

from __future__ import annotations

import importlib
import os
import re
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.commands.selftest.fault import FaultFamily, Moment, Point
from conformance.spec.records import Side, Verdict

_LAYER = re.compile(r"(.*\.)(\d+)(\..*)")
Weights = Mapping[str, Tensor]

CASE = FaultFamily(side=Side.ENGINE, point=Point.CASE, cases="clean.pair", alone=True, short=True)
CHECKPOINT = FaultFamily(
    side=Side.ENGINE,
    point=Point.CHECKPOINT,
    cases=("clean.pair", "read_all.pair"),
    verdicts=(Verdict.WRONG, Verdict.DRIFT),
    alone=True,
)
FAMILIES = (CHECKPOINT, CASE)


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


@CHECKPOINT.fault(
    "layer-weights",
    # The error is so large that no reading of the probe prompt is the stream; that is reported.
    verdicts=(Verdict.WRONG, Verdict.DRIFT, Verdict.STRUCTURE),
)
def neighbours(weights: Weights, now: Moment) -> dict[str, Tensor]:
    """The second layer has the third one's weights."""
    changed = dict(weights)
    for name in weights:
        match = _LAYER.fullmatch(name)
        if match and match.group(2) == "1":
            changed[name] = weights[f"{match.group(1)}2{match.group(3)}"].clone()
    return changed


@CHECKPOINT.fault("final-norm")
def no_final_norm(weights: Weights, now: Moment) -> dict[str, Tensor]:
    """The final norm's weights are lost."""
    return {
        name: torch.ones_like(value) * 2
        if value.ndim == 1 and not _LAYER.fullmatch(name) and name.endswith("weight")
        else value
        for name, value in weights.items()
    }
