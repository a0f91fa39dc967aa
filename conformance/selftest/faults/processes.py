"""Faults of the process: it dies, hangs, exits with status 0, or does not start."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from conformance.records import Side, Verdict
from conformance.selftest.fault import Fault, Moment, Point


def abort(value: Any, now: Moment) -> None:
    os.abort()


def hang(value: Any, now: Moment) -> None:
    while True:
        time.sleep(0.05)


def leave(value: Any, now: Moment) -> None:
    os._exit(0)


def killed(value: Any, now: Moment) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def bad_start(weights: Mapping[str, Tensor], now: Moment) -> dict[str, Tensor]:
    """Drop a row of the second layer's matrices, so that no engine loads them."""
    return {
        name: value[:-1] if value.ndim == 2 and ".1." in name else value
        for name, value in weights.items()
    }


def no_hook(now: Moment) -> None:
    """Disable nnsight's interleaver, as if another model runner were in its place."""
    # Imported by name: the parent also reads this module, and has no engine installed.
    module = importlib.import_module("nnsight.intervention.interleaver")
    module.Interleaver.handle = lambda _self, _provider, value: value


def renamed(path: str, now: Moment) -> str:
    return f"{path}_renamed"


def _fault(name: str, act: Any, verdict: Verdict, point: Point = Point.CASE, **more: Any) -> Fault:
    defaults: dict[str, Any] = {"side": Side.ENGINE, "cases": ("clean.pair",)}
    return Fault(
        id=name,
        point=point,
        act=act,
        verdicts=frozenset({verdict}),
        alone=True,
        short=True,
        **(defaults | more),
    )


FAULTS = (
    _fault(
        "crash",
        abort,
        Verdict.CRASH,
        quick=True,
        summary="The worker aborts.",
    ),
    _fault(
        "hang",
        hang,
        Verdict.TIMEOUT,
        summary="The worker loops for ever.",
    ),
    _fault(
        "exit",
        leave,
        Verdict.MISSING,
        summary="The worker leaves with exit status 0 before it is done.",
    ),
    # Neither a killed process nor its engine caused the failure.
    _fault(
        "oom",
        killed,
        Verdict.CRASH,
        side=Side.UNDECIDED,
        summary="The worker is killed, as for want of memory.",
    ),
    Fault(
        id="runner-v2",
        side=Side.NNSIGHT,
        point=Point.LOAD,
        act=no_hook,
        cases=("clean.pair",),
        verdicts=frozenset({Verdict.ERROR, Verdict.TIMEOUT, Verdict.CRASH}),
        alone=True,
        short=True,
        summary=(
            "No hook fires: another model runner is in place of the one that nnsight instruments."
        ),
        met="vLLM-Hook #33: after an upgrade no hook fired",
    ),
    Fault(
        id="backend-switch",
        side=Side.ENGINE,
        point=Point.PATH,
        act=renamed,
        cases=("read_all.pair",),
        verdicts=frozenset({Verdict.ERROR}),
        quick=True,
        summary="The list of layers has another path than the scenario's block takes.",
    ),
    _fault(
        "bad-start",
        bad_start,
        Verdict.ERROR,
        Point.CHECKPOINT,
        quick=True,
        summary="The weights of a layer have another shape: the engine does not start.",
    ),
)
