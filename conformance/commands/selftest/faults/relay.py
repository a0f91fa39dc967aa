"""Faults of the transport between pipeline stages: what is recorded, sent and replayed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from torch import Tensor

from conformance.commands.selftest.fault import SKIPPED, STAGES, FaultFamily, Moment, Point
from conformance.commands.selftest.faults.operators import blurred, in_float32, zeros
from conformance.spec.records import Precision, Side, Verdict

ENDED = (Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT, Verdict.MISSING)
#: The axis of the tokens in [tokens, width] and [1, tokens, width].
_TOKENS = -2

Change = Callable[[Tensor, Moment], Tensor]


def sent(change: Change, served: Any, now: Moment) -> Any:
    """Change a layer's values that the first stage sends."""
    if now.stage != 0 or now.layer is None:
        return served
    return served._replace(value=_tensors(served.value, change, now))


def _tensors(value: Any, change: Change, now: Moment) -> Any:
    if isinstance(value, Tensor):
        return change(value, now)
    if isinstance(value, (tuple, list)):
        return type(value)(_tensors(part, change, now) for part in value)
    return value


RECORD = FaultFamily(
    side=Side.PIPELINE,
    point=Point.RECORD,
    cases="cross_consume.early-last",
    verdicts=Verdict.WRONG,
    places="early",
    backends=STAGES,
)
SENT = FaultFamily(sent, **RECORD.common)
#: What a block reads and writes in one stage alone.
BLOCK = FaultFamily(**RECORD.common | {"places": "", "verdicts": ENDED})

SENT.add(
    "pp-dtype",
    in_float32,
    "A value arrives at another stage as float32.",
    verdicts=Verdict.DTYPE,
    quick=True,
    precision=Precision.BF16,
)
SENT.add(
    "pp-noise",
    blurred,
    "A value that is sent to another stage carries a random error.",
    doses=(0.0003, 0.003, 0.1),
    quick=True,
)
SENT.add(
    "pp-zeros",
    zeros,
    "A value arrives at another stage as zeros.",
    says=("zero", "early"),
    quick=True,
)


@SENT.fault("pp-rows", verdicts=(*ENDED, Verdict.STRUCTURE, Verdict.WRONG), alone=True, short=True)
def one_row(rows: Tensor, now: Moment) -> Tensor:
    """Of a value one row arrives at another stage."""
    return rows.narrow(_TOKENS, 0, 1)


@SENT.fault("pp-rolled", says=("row of the", "rows of the batch"), quick=True)
def rows_rolled(rows: Tensor, now: Moment) -> Tensor:
    """A value arrives at another stage with its rows shifted by one."""
    return rows.roll(-1, dims=_TOKENS)


@RECORD.fault("pp-stale", cases="read_all.pair", says="previous layer", everywhere=True)
def stale(served: Any, now: Moment) -> Any:
    """What is sent of a layer is the value of the layer before."""
    if now.stage != 0 or now.layer is None:
        return served
    earlier = now.memory.get("sent", served)
    now.memory["sent"] = served
    return served._replace(value=earlier.value) if now.acts_here else served


@RECORD.fault("pp-never-sent", verdicts=ENDED, alone=True, short=True)
def never_sent(served: Any, now: Moment) -> Any:
    """The owner of a layer does not send its value."""
    return None if now.stage == 0 and now.layer is not None else served


@RECORD.fault(
    "pp-order",
    point=Point.REPLAY,
    verdicts=Verdict.TIMEOUT,
    alone=True,
    short=True,
    everywhere=True,
)
def waits(visits: Any, now: Moment) -> Any:
    """The last stage waits for a value that does not come."""
    while _is_last(now):
        time.sleep(0.05)
    return visits


BLOCK.add(
    "pp-iter",
    waits,
    "A value of another stage is iterated over without end.",
    point=Point.READ,
    verdicts=Verdict.TIMEOUT,
    alone=True,
    short=True,
)


@BLOCK.fault("pp-names", point=Point.READ)
def raises(value: Tensor, now: Moment) -> Tensor:
    """A stage finds no owner for a layer's name."""
    if now.layer is not None and now.layer < now.layers // 2 and now.stage != 0:
        raise AttributeError("no stage owns a module of this name")
    return value


@BLOCK.fault(
    "pp-rank-divergence",
    point=Point.SERVED,
    cases="read_all.pair",
    places="early",
    verdicts=Verdict.WRONG,
)
def rank_added(value: Tensor, now: Moment) -> Tensor:
    """What a block reads depends on the stage that runs it."""
    return value + now.stage


BLOCK.add(
    "pp-rank-edit",
    rank_added,
    "What a block writes depends on the stage that runs it.",
    point=Point.TAKEN,
    cases="steering.middle-large-all",
    quick=True,
)


@BLOCK.fault(
    "pp-late-write",
    point=Point.TAKEN,
    cases="multigen.cross",
    verdicts=(*ENDED, Verdict.DROPPED, Verdict.PARTIAL),
)
def late(value: Tensor, now: Moment) -> Any:
    """A write reaches the owner of a layer after the layer ran."""
    return SKIPPED if _is_last(now) else value


def _is_last(now: Moment) -> bool:
    return now.stage == now.stages - 1
