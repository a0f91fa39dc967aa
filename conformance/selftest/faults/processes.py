"""Faults of the process: it dies, loops, leaves as if well, or does not start."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

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


def bad_start(now: Moment) -> None:
    raise RuntimeError("injected: the engine core could not be initialised")


def _fault(name: str, act: Any, verdict: Verdict, point: Point = Point.CASE, **more: Any) -> Fault:
    return Fault(
        id=name,
        source="faults.md",
        side=Side.ENGINE,
        point=point,
        act=act,
        cases=("clean.pair",),
        verdicts=frozenset({verdict}),
        alone=True,
        short=True,
        **more,
    )


FAULTS = (
    _fault("crash", abort, Verdict.CRASH, quick=True),
    _fault("hang", hang, Verdict.TIMEOUT),
    _fault("exit", leave, Verdict.MISSING),
    _fault("oom", killed, Verdict.CRASH),
    _fault("bad-start", bad_start, Verdict.ERROR, Point.LOAD, quick=True),
)
