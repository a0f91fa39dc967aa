"""Faults between requests that run at once, and in traces that read the modules themselves."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import torch
from torch import nn

from conformance.records import Side, Verdict
from conformance.selftest.fault import CLIENTS, VLLM, Fault, Moment, Point
from conformance.selftest.faults.model import branch_gives, mlp
from conformance.selftest.faults.returned import Saved, by_name, next_layer, sites

WRONG = frozenset({Verdict.WRONG})
STRUCTURE = frozenset({Verdict.STRUCTURE})

#: The first forward after `staggered` aborts a request.
AFTER_ABORT = 3
#: How many requests this project's engines run at once.
SEATS = 8


def outlives(model: nn.Module, now: Moment) -> list[Any]:
    """Zero a branch in all forwards from this one on, as if a request's edit had stayed."""
    forwards = count(1)

    def change(value: torch.Tensor) -> torch.Tensor:
        return value if next(forwards) < now.dose else torch.zeros_like(value)

    return branch_gives(model, now, mlp, change)


def outlives_write(model: nn.Module, now: Moment) -> list[Any]:
    """Zero a branch of a layer in the forwards after a block has written that layer. In the same
    forward the branch runs before the write.
    """

    def change(value: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(value) if now.at in now.written else value

    return branch_gives(model, now, mlp, change)


def beside_own(start: int, now: Moment) -> int:
    """Begin a request's rows one row too late, or one too early at the end of a batch, so that they
    include a row of a neighbour if there is one.
    """
    size, total = now.raw()
    if start + size < total:
        return start + 1
    return max(start - 1, 0)


def of_another(by_request: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Give every client the saves of the client answered before it, if the names match."""
    answered = {}
    for request, entry in by_request.items():
        names = tuple(sorted(entry["saves"]))
        answered[request] = now.memory.get(names, entry) if names else entry
        now.memory[names] = entry
    return answered


def mixed_rows(model: nn.Module, now: Moment) -> list[Any]:
    """Swap the first and the last row of a batch in a branch."""
    most = 0

    def change(value: torch.Tensor) -> torch.Tensor:
        nonlocal most
        rows = value.reshape(-1, value.shape[-1]).clone()
        if len(rows) < max(most, 2):  # one request alone, not a batch
            return value
        most = len(rows)
        rows[[0, -1]] = rows[[-1, 0]]
        return rows.reshape(value.shape)

    return branch_gives(model, now, mlp, change)


def mixed_on_joining(model: nn.Module, now: Moment) -> list[Any]:
    """When a request joins the batch, swap the first row (of a request in progress) with the last
    row (of the new prompt) in a branch.
    """
    forwards = count()

    def change(value: torch.Tensor) -> torch.Tensor:
        rows = value.reshape(-1, value.shape[-1]).clone()
        # All requests begin in the first forward. A later batch has a row per seat if none joins.
        if next(forwards) and len(rows) > now.dose:
            rows[[0, -1]] = rows[[-1, 0]]
        return rows.reshape(value.shape)

    return branch_gives(model, now, mlp, change)


def exchanged(saved: Saved, now: Moment) -> Saved:
    """Swap the saves of two clients."""
    swapped = {1: 2, 2: 1}
    return {
        str(replace(site, prompt=swapped.get(site.prompt, site.prompt))): value
        for site, value in sites(saved).items()
    }


def neighbours_rows(saved: Saved, now: Moment) -> Saved:
    """Replace the untouched prompt's last rows by the first rows of its neighbour."""
    by_site = sites(saved)
    mixed = dict(by_site)
    for site, value in by_site.items():
        neighbour = by_site.get(replace(site, prompt=1))
        if site.prompt == 0 and site.name == "stream" and neighbour is not None:
            rows = int(now.dose)
            mixed[site] = torch.cat([value[:-rows], neighbour[:rows]])
    return by_name(mixed)


def touched(saved: Saved, now: Moment) -> Saved:
    """Add a share of a neighbour's edit to the untouched prompt's rows."""
    by_site = sites(saved)
    leaked = dict(by_site)
    for site, value in by_site.items():
        of_untouched = site.prompt == 0 and site.run == "edited" and site.name == "stream"
        edited = replace(site, prompt=1)
        if of_untouched and edited in by_site:
            change = by_site[edited].float() - by_site[replace(edited, run="clean")].float()
            leaked[site] = (value.float() + now.dose * change.mean(dim=0)).to(value.dtype)
    return by_name(leaked)


def goes_on(saved: Saved, now: Moment) -> Saved:
    """Continue a request after its stop id."""
    by_site = sites(saved)
    last = max(site.step for site in by_site if site.prompt == 0)
    for site in [chosen for chosen in by_site if chosen.name == "sampled" and chosen.prompt == 0]:
        if site.step == last:
            by_site[replace(site, step=last + 1)] = by_site[site].clone()
    return by_name(by_site)


def neighbour_lost(saved: Saved, now: Moment) -> Saved:
    """Drop the saves of the block that ran next to the one that raised."""
    return {str(site): value for site, value in sites(saved).items() if site.prompt == 0}


def _fault(name: str, act: Any, *cases: str, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.NNSIGHT,
        "point": Point.RETURNED,
        "verdicts": WRONG,
    }
    return Fault(id=name, act=act, cases=cases, **(defaults | more))


def _sent(name: str, act: Any, **more: Any) -> Fault:
    """Return a fault between clients. All models share the code that handles what clients send."""
    return _fault(name, act, "tenants.clients", backends=CLIENTS, models=("llama",), **more)


FAULTS = (
    _fault(
        "edit-outlives",
        outlives_write,
        "tenants.trace",
        point=Point.FORWARD,
        # Edits belong to nnsight: no engine computes one, in any request.
        side=Side.NNSIGHT,
        places=("middle",),
        verdicts=frozenset({Verdict.WRONG, Verdict.CONTAMINATED}),
        summary=(
            "Once a block has written a layer, a branch of it gives zeros in the "
            "forwards that follow."
        ),
    ),
    _sent(
        "client-outlives",
        outlives_write,
        point=Point.FORWARD,
        places=("middle",),
        verdicts=frozenset({Verdict.WRONG, Verdict.CONTAMINATED}),
        summary=(
            "Once one client's block has written a layer, a branch of it gives zeros "
            "in what follows, for all clients."
        ),
    ),
    _sent(
        "client-rows",
        beside_own,
        point=Point.SPAN,
        verdicts=frozenset({Verdict.WRONG, Verdict.CONTAMINATED}),
        summary=(
            "nnsight takes a request's rows from one place too far on in the batch, "
            "or too far back: one of them is its neighbour's."
        ),
    ),
    _sent(
        "client-saves",
        of_another,
        point=Point.COLLECTED,
        verdicts=frozenset({Verdict.WRONG, Verdict.STRUCTURE}),
        summary=(
            "Every client is sent what the one that was answered before it saved by the same names."
        ),
    ),
    _fault(
        "abort-outlived",
        outlives,
        "staggered.aborted-trace",
        point=Point.FORWARD,
        side=Side.ENGINE,
        backends=VLLM,
        places=("middle",),
        doses=(AFTER_ABORT,),
        summary=(
            "What an aborted request's block did to a layer's branch is done to its "
            "neighbours, and to the trace that follows."
        ),
    ),
    _fault(
        "clients-exchanged",
        exchanged,
        "tenants.trace",
        verdicts=frozenset({Verdict.WRONG, Verdict.STRUCTURE}),
        quick=True,
        summary="Two of several requests get each other's saves.",
    ),
    _fault(
        "rows-mixed",
        mixed_rows,
        "tenants.trace",
        point=Point.FORWARD,
        side=Side.ENGINE,
        places=("middle",),
        quick=True,
        summary="In a batch a row of the first request and one of the last change places.",
    ),
    _fault(
        "joined-rows",
        mixed_on_joining,
        "staggered.joins-trace",
        point=Point.FORWARD,
        side=Side.ENGINE,
        backends=VLLM,  # where requests join a running batch
        places=("middle",),
        doses=(SEATS,),
        summary=(
            "When a request joins a running batch, a row of one under way and one of "
            "the prompt that came change places."
        ),
    ),
    _fault(
        "neighbour-rows",
        neighbours_rows,
        "tenants.trace",
        doses=(1, 4),
        summary="A request's last rows are the first ones of its neighbour in the batch.",
    ),
    _fault(
        "neighbour-edited",
        touched,
        "tenants.trace",
        doses=(0.002, 0.5),
        verdicts=frozenset({Verdict.WRONG, Verdict.CONTAMINATED}),
        quick=True,
        summary=(
            "A share of what an edit adds to its own request is in the rows of a "
            "neighbour that edits nothing."
        ),
    ),
    _fault(
        "stop-missed",
        goes_on,
        "staggered.stop-trace",
        backends=VLLM,
        verdicts=STRUCTURE,
        summary="A request goes on after its stop id.",
    ),
    _fault(
        "neighbour-lost",
        neighbour_lost,
        "staggered.raises-trace",
        backends=VLLM,
        verdicts=frozenset({Verdict.MISSING}),
        summary="What a block saved that stood beside one that raised is gone.",
    ),
    _fault(
        "raw-overwritten",
        next_layer,
        "raw.read_first",
        backends=("hf",),
        verdicts=frozenset({Verdict.WRONG, Verdict.ALIASED}),
        places=("first", "middle"),
        quick=True,
        summary=("A layer's output, kept without a copy, holds the next layer's at the end."),
    ),
    _fault(
        "raw-overwritten-sum",
        next_layer,
        "raw.read_sum",
        backends=VLLM,
        architectures=("llama", "gemma2"),
        verdicts=frozenset({Verdict.WRONG, Verdict.ALIASED}),
        places=("first", "middle"),
        summary="The same where the stream is the sum of the two parts of an output.",
    ),
)
