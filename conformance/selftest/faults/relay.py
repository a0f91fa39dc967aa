"""Faults of the transport between pipeline stages: what is recorded, sent and replayed."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor

from conformance.records import Precision, Side, Verdict
from conformance.selftest.fault import SKIPPED, STAGES, Fault, Moment, Point
from conformance.selftest.faults.returned import Saved, short_list, sites
from conformance.selftest.faults.shapes import float32, noisy

CROSS = ("cross_consume.early-last",)
ENDED = frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT, Verdict.MISSING})
WRONG = frozenset({Verdict.WRONG})
#: The axis of the tokens in [tokens, width] and [1, tokens, width].
_TOKENS = -2


def _tensors(value: Any, change: Any) -> Any:
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, (tuple, list)):
        return type(value)(_tensors(part, change) for part in value)
    return value


def _first_stage(served: Any, now: Moment, change: Any) -> Any:
    """Change the value of a layer that the first stage sends."""
    if now.stage != 0 or now.layer is None or not now.acts_here:
        return served
    return served._replace(value=_tensors(served.value, change))


def guessed_dtype(served: Any, now: Moment) -> Any:
    return _first_stage(served, now, float32)


def one_row(served: Any, now: Moment) -> Any:
    return _first_stage(served, now, lambda rows: rows.narrow(_TOKENS, 0, 1))


def noise(served: Any, now: Moment) -> Any:
    return _first_stage(served, now, lambda rows: noisy(rows, now.dose))


def rows_rolled(served: Any, now: Moment) -> Any:
    """Shift the rows by one, as in a stale batch."""
    return _first_stage(served, now, lambda rows: rows.roll(-1, dims=_TOKENS))


def stale(served: Any, now: Moment) -> Any:
    """Send the value of the previous layer."""
    if now.stage != 0 or now.layer is None:
        return served
    earlier = now.memory.get("sent", served)
    now.memory["sent"] = served
    return served._replace(value=earlier.value) if now.acts_here else served


def zeros(served: Any, now: Moment) -> Any:
    return _first_stage(served, now, torch.zeros_like)


def never_sent(served: Any, now: Moment) -> Any:
    return None if now.stage == 0 and now.acts_here and now.layer is not None else served


def visits_lost(visits: Any, now: Moment) -> Any:
    """Do not replay on the last stage what the first one saw."""
    return None if now.stage == now.stages - 1 else visits


def waits(visits: Any, now: Moment) -> Any:
    """Make the last stage wait for a value that does not come."""
    while now.stage == now.stages - 1:
        time.sleep(0.05)
    return visits


def first_stages_keys(saved: Saved, now: Moment) -> Saved:
    return {
        str(site): value
        for site, value in sites(saved).items()
        if site.layer is None or site.layer >= now.layers // 2
    }


def one_bit(saved: Saved, now: Moment) -> Saved:
    """Flip the last bit of one number, compared with a single stage."""
    value = next(iter(saved.values()))
    if value.dtype == torch.bfloat16:
        value.view(torch.int16).view(-1)[0] ^= 1
    else:
        value.view(torch.int32).view(-1)[0] ^= 1
    return saved


def rank_added(value: Tensor, now: Moment) -> Tensor:
    return value + now.stage if now.acts_here else value


def other_edit(value: Tensor, now: Moment) -> Tensor:
    return value + now.stage


def late(value: Tensor, now: Moment) -> Any:
    """Lose a write that reaches the stage that owns the layer after the layer ran."""
    return SKIPPED if now.stage == now.stages - 1 else value


def raises(value: Tensor, now: Moment) -> Tensor:
    if now.layer is not None and now.layer < now.layers // 2 and now.stage != 0:
        raise AttributeError("no stage owns a module of this name")
    return value


def endless(value: Tensor, now: Moment) -> Tensor:
    while now.stage == now.stages - 1:
        time.sleep(0.05)
    return value


def _fault(name: str, act: Any, point: Point = Point.RECORD, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.PIPELINE,
        "cases": CROSS,
        "verdicts": WRONG,
        "places": ("early",),
        "backends": STAGES,
    }
    return Fault(id=name, act=act, point=point, **(defaults | more))


FAULTS = (
    _fault(
        "pp-save-lost",
        first_stages_keys,
        Point.RETURNED,
        cases=("read_all.pair",),
        places=("",),
        verdicts=frozenset({Verdict.MISSING}),
        quick=True,
        summary="What the first stage's layers saved is not reported.",
    ),
    _fault(
        "pp-container",
        short_list,
        Point.RETURNED,
        cases=("multigen.read",),
        doses=(7, 3),
        places=("",),
        verdicts=frozenset({Verdict.MISSING}),
        summary="Of a list over the steps a stage's shorter copy is reported.",
    ),
    _fault(
        "pp-dtype",
        guessed_dtype,
        verdicts=frozenset({Verdict.DTYPE}),
        quick=True,
        precision=Precision.BF16,
        summary="A value arrives at another stage as float32.",
    ),
    _fault(
        "pp-rows",
        one_row,
        verdicts=ENDED | {Verdict.STRUCTURE, Verdict.WRONG},
        alone=True,
        short=True,
        summary="Of a value one row arrives at another stage.",
    ),
    _fault(
        "pp-noise",
        noise,
        doses=(0.0003, 0.003, 0.1),
        quick=True,
        summary="A value that is sent to another stage carries a random error.",
    ),
    _fault(
        "pp-rolled",
        rows_rolled,
        says=("row of the", "rows of the batch"),
        quick=True,
        summary="A value arrives at another stage with its rows shifted by one.",
    ),
    _fault(
        "pp-stale",
        stale,
        cases=("read_all.pair",),
        places=("early",),
        says=("previous layer",),
        summary="What is sent of a layer is the value of the layer before.",
    ),
    _fault(
        "pp-zeros",
        zeros,
        says=("zero", "early"),
        quick=True,
        summary="A value arrives at another stage as zeros.",
    ),
    _fault(
        "pp-never-sent",
        never_sent,
        verdicts=ENDED,
        alone=True,
        short=True,
        summary="The owner of a layer does not send its value.",
    ),
    _fault(
        "pp-visits-lost",
        visits_lost,
        Point.REPLAY,
        verdicts=ENDED,
        alone=True,
        short=True,
        summary="The last stage does not replay what the first one served.",
    ),
    _fault(
        "pp-order",
        waits,
        Point.REPLAY,
        verdicts=frozenset({Verdict.TIMEOUT}),
        alone=True,
        short=True,
        summary="The last stage waits for a value that does not come.",
    ),
    _fault(
        "pp-one-bit",
        one_bit,
        Point.RETURNED,
        cases=("read_all.pair", "clean.pair"),
        places=("",),
        quick=True,
        by_bits=True,
        summary="The last bit of one number differs from that of a single stage.",
    ),
    _fault(
        "pp-rank-divergence",
        rank_added,
        Point.SERVED,
        places=("early",),
        cases=("read_all.pair",),
        summary="What a block reads depends on the stage that runs it.",
    ),
    _fault(
        "pp-rank-edit",
        other_edit,
        Point.TAKEN,
        cases=("steering.middle-large-all",),
        places=("",),
        verdicts=ENDED,
        quick=True,
        summary="What a block writes depends on the stage that runs it.",
    ),
    _fault(
        "pp-late-write",
        late,
        Point.TAKEN,
        cases=("multigen.cross",),
        places=("",),
        verdicts=ENDED | {Verdict.DROPPED, Verdict.PARTIAL},
        summary="A write reaches the owner of a layer after the layer ran.",
    ),
    _fault(
        "pp-names",
        raises,
        Point.READ,
        places=("",),
        verdicts=ENDED,
        summary="A stage finds no owner for a layer's name.",
    ),
    _fault(
        "pp-iter",
        endless,
        Point.READ,
        places=("",),
        verdicts=frozenset({Verdict.TIMEOUT}),
        alone=True,
        short=True,
        summary="A value of another stage is iterated over without end.",
    ),
)
