"""Faults between requests that run at once, in the engine's forward and in nnsight."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from conformance.commands.selftest.fault import CLIENTS, VLLM, FaultFamily, Moment, Point
from conformance.commands.selftest.faults.model import change_branch, mlp
from conformance.spec.records import Side, Verdict

LEAKED = (Verdict.WRONG, Verdict.CONTAMINATED)
#: The first forward after `staggered` aborts a request.
AFTER_ABORT = 3
#: How many requests this project's engines run at once.
SEATS = 8

FORWARD = FaultFamily(
    side=Side.ENGINE, point=Point.FORWARD, verdicts=Verdict.WRONG, places="middle"
)
#: Edits belong to nnsight: no engine computes one, in any request.
OUTLIVING = FaultFamily(
    partial(change_branch, mlp),
    side=Side.NNSIGHT,
    point=Point.FORWARD,
    verdicts=LEAKED,
    places="middle",
)
#: All models share the code that handles what clients send.
SENT = FaultFamily(side=Side.NNSIGHT, cases="tenants.clients", backends=CLIENTS, models="llama")


@OUTLIVING.fault("edit-outlives", cases="tenants.trace")
def outlives_write(rows: Tensor, now: Moment) -> Tensor:
    """Once a block has written a layer, a branch of it gives zeros in the forwards that follow."""
    # In the same forward the branch runs before the write.
    return torch.zeros_like(rows) if now.at in now.written else rows


OUTLIVING.add(
    "client-outlives",
    outlives_write,
    "Once one client's block has written a layer, a branch of it gives zeros in what follows, for "
    "all clients.",
    cases="tenants.clients",
    backends=CLIENTS,
    models="llama",
)


@FORWARD.fault("abort-outlived", cases="staggered.aborted-trace", backends=VLLM, doses=AFTER_ABORT)
def outlives(model: nn.Module, now: Moment) -> list[Any]:
    """What an aborted request's block did to a layer's branch is done to its neighbours, and to the
    trace that follows.
    """
    forwards = count(1)

    def change(rows: Tensor, _: Moment) -> Tensor:
        return rows if next(forwards) < now.dose else torch.zeros_like(rows)

    return change_branch(mlp, change, model, now)


@FORWARD.fault("rows-mixed", cases="tenants.trace", quick=True)
def mixed_rows(model: nn.Module, now: Moment) -> list[Any]:
    """In a batch a row of the first request and one of the last change places."""
    most = 2

    def change(rows: Tensor, _: Moment) -> Tensor:
        nonlocal most
        if len(rows) < most:  # one request alone, not a batch
            return rows
        most = len(rows)
        return _ends_swapped(rows)

    return change_branch(mlp, change, model, now)


@FORWARD.fault(
    "joined-rows",
    cases="staggered.joins-trace",
    backends=VLLM,  # where requests join a running batch
    doses=SEATS,
)
def mixed_on_joining(model: nn.Module, now: Moment) -> list[Any]:
    """When a request joins a running batch, a row of one under way and one of the prompt that came
    change places.
    """
    forwards = count()

    def change(rows: Tensor, _: Moment) -> Tensor:
        # All requests begin in the first forward. A later batch has a row per seat if none joins.
        joined = next(forwards) and len(rows) > now.dose
        return _ends_swapped(rows) if joined else rows

    return change_branch(mlp, change, model, now)


def _ends_swapped(rows: Tensor) -> Tensor:
    """Swap the first and the last row."""
    rows = rows.clone()
    rows[[0, -1]] = rows[[-1, 0]]
    return rows


@SENT.fault("client-rows", point=Point.SPAN, verdicts=LEAKED)
def beside_own(start: int, now: Moment) -> int:
    """nnsight takes a request's rows from one place too far on in the batch, or too far back: one
    of them is its neighbour's.
    """
    size, total = now.raw()
    if start + size < total:
        return start + 1
    return max(start - 1, 0)


@SENT.fault("client-saves", point=Point.COLLECTED, verdicts=(Verdict.WRONG, Verdict.STRUCTURE))
def of_another(by_request: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Every client is sent what the one that was answered before it saved by the same names."""
    answered = {}
    for request, entry in by_request.items():
        names = tuple(sorted(entry["saves"]))
        answered[request] = now.memory.get(names, entry) if names else entry
        now.memory[names] = entry
    return answered
