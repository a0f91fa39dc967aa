"""Faults of other trace features: skip, stop, fail, register, repeat."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from conformance.records import Side, Verdict
from conformance.selftest.fault import SKIPPED, VLLM, Fault, Inexpressible, Moment, Point
from conformance.selftest.faults.reads import last_chunk, overwritten
from conformance.selftest.faults.returned import Saved, by_name, short_list, sites

WRONG = frozenset({Verdict.WRONG})
ENDED = frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT})
#: Sites that must equal, bitwise, another value of the same run.
SAME = frozenset({"beside_another", "second", "kept", "before"})


def one_bit(saved: Saved, now: Moment) -> Saved:
    """Flip the last bit of one number that must repeat another."""
    by_site = sites(saved)
    for site, value in by_site.items():
        if site.name in SAME and site.run != "clean":
            value.view(torch.int16).view(-1)[0] ^= 1
            break
    return by_name(by_site)


def fewer_rows(saved: Saved, now: Moment) -> Saved:
    """Drop the first tokens' rows, as if they were known from an earlier run."""
    return {
        str(site): value[int(now.dose) :] if site.name == "third" else value
        for site, value in sites(saved).items()
    }


def lasting(saved: Saved, now: Moment) -> Saved:
    """Leave what another prompt's block wrote in an earlier run."""
    return {
        str(site): value * 0
        if site.name in {"second", "beside_another"} and site.layer == now.layers - 1
        else value
        for site, value in sites(saved).items()
    }


def swallowed(saved: Saved, now: Moment) -> Saved:
    """Return no error although the block raised one."""
    nothing = torch.tensor(list(b"nothing"), dtype=torch.uint8)
    return {
        str(site): nothing if site.name == "error" else value
        for site, value in sites(saved).items()
    }


def still_there(saved: Saved, now: Moment) -> Saved:
    """Zero the first layer in the trace after the one that failed."""
    return {
        str(site): torch.zeros_like(value) if site.layer == 0 else value
        for site, value in sites(saved).items()
    }


def before_edit(saved: Saved, now: Moment) -> Saved:
    """Return the cached outputs as they were before the block changed them."""
    by_site = sites(saved)
    return {
        str(site): by_site[replace(site, run="clean")]
        if site.run == "edited" and site.name == "stream"
        else value
        for site, value in by_site.items()
    }


def other_ids(saved: Saved, now: Moment) -> Saved:
    """Return other ids than the text's."""
    return {
        str(site): value.flip(0) + 1 if site.name == "ids" else value
        for site, value in sites(saved).items()
    }


def alone(value: Any, now: Moment) -> Any:
    """Return one tensor for a layer that returns two."""
    if not isinstance(value, tuple):
        raise Inexpressible("a layer's output is one tensor")
    return value[0] + value[1]


def unnormed(value: Tensor, now: Moment) -> Tensor:
    """Apply the head to the stream without the final norm."""
    lm, stream = now.raw()
    head = lm.model
    for name in lm.layers.parts.head.split("."):
        head = getattr(head, name)
    return functional.linear(stream, head.weight)[:, : value.shape[-1]]


def one_early(value: list[Tensor], now: Moment) -> list[Tensor]:
    """Shift the ids by one: the first one is not generated."""
    return [torch.zeros_like(value[0]), *value[:-1]]


def other_seed(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Give every generation a different seed."""
    now.memory["drawn"] = now.memory.get("drawn", 0) + 1
    return how | {"seed": how["seed"] + now.memory["drawn"]}


def recomputed_step(saved: Saved, now: Moment) -> Saved:
    """Report one step of a preempted request twice, and all later ones a step late."""
    by_site = sites(saved)
    return {
        str(site): by_site[replace(site, step=site.step - 1)]
        if site.step >= now.dose and site.prompt == 1
        else value
        for site, value in by_site.items()
    }


def swapped_ids(saved: Saved, now: Moment) -> Saved:
    """Swap the ids of two samples, but not their logits."""
    by_site = sites(saved)
    return {
        str(site): by_site[replace(site, prompt=1 - site.prompt)]
        if site.name == "sampled"
        else value
        for site, value in by_site.items()
    }


def next_id(token: int, now: Moment) -> int:
    return token + 1


def tie_broken(value: Tensor, now: Moment) -> Tensor:
    """Swap the two best experts of one token."""
    scores = value.clone()
    best = scores[-1].topk(2).indices
    scores[-1, best] = value[-1, best.flip(0)]
    return scores if now.acts_here else value


def never(value: Any, now: Moment) -> bool:
    return False


def lost(value: Any, now: Moment) -> Any:
    return SKIPPED


def _fault(name: str, act: Any, point: Point, *cases: str, **more: Any) -> Fault:
    defaults: dict[str, Any] = {"side": Side.NNSIGHT, "verdicts": WRONG}
    return Fault(id=name, act=act, point=point, cases=cases, **(defaults | more))


FAULTS = (
    _fault(
        "one-bit-again",
        one_bit,
        Point.RETURNED,
        "batch.neighbours",
        "repeat.forgotten",
        "save_alias.mlp",
        "skip.middle-alone",
        # The bits before the skipped layer may not change; that is reported first.
        verdicts=frozenset({Verdict.WRONG, Verdict.CONTAMINATED}),
        quick=True,
        summary="The last bit of one number that must repeat another does not.",
    ),
    _fault(
        "prefix-cache-again",
        fewer_rows,
        Point.RETURNED,
        "repeat.forgotten",
        doses=(1, 4),
        verdicts=frozenset({Verdict.STRUCTURE}),
        summary=("A repeated prompt has fewer rows: its first tokens were not computed again."),
    ),
    _fault(
        "lasting",
        lasting,
        Point.RETURNED,
        "repeat.forgotten",
        "batch.neighbours",
        summary="What an earlier run's block wrote is still there.",
    ),
    _fault(
        "error-swallowed",
        swallowed,
        Point.RETURNED,
        "errors.before",
        "errors.order",
        quick=True,
        summary="The error that a block raised does not come out of the trace.",
    ),
    _fault(
        "error-lasting",
        still_there,
        Point.RETURNED,
        "errors.between",
        "errors.unknown",
        summary="The trace after one that failed has lost a layer's values.",
    ),
    _fault(
        "alias-live",
        overwritten,
        Point.LIVE,
        "save_alias.mlp",
        "save_alias.attention",
        verdicts=frozenset({Verdict.ALIASED, Verdict.WRONG}),
        quick=True,
        summary="A branch's output, saved without a copy, is overwritten by a later one.",
        met="nnsight on vLLM: the fused norm writes over what was saved",
    ),
    _fault(
        "skip-dual",
        alone,
        Point.SKIP,
        "skip.middle-alone",
        verdicts=ENDED,
        backends=VLLM,
        alone=True,
        short=True,
        summary="A layer that returns two summands is skipped with one tensor.",
    ),
    _fault(
        "skip-lost",
        lost,
        Point.SKIP,
        "skip.middle-alone",
        "skip.last-alone",
        verdicts=frozenset({Verdict.DROPPED}),
        quick=True,
        summary="A layer that is to be skipped runs all the same.",
    ),
    _fault(
        "lens-unnormed",
        unnormed,
        Point.LENS,
        "logit_lens.all",
        quick=True,
        summary="The logit lens applies the head to the stream without the final norm.",
    ),
    _fault(
        "stop-lost",
        never,
        Point.STOP,
        "stop.early",
        "stop.late",
        verdicts=frozenset({Verdict.STRUCTURE}),
        quick=True,
        summary="`tracer.stop` does not stop.",
    ),
    _fault(
        "result-early",
        one_early,
        Point.RESULT,
        "result.all",
        quick=True,
        summary="`tracer.result` has every id one place late.",
    ),
    _fault(
        "edit-stays",
        never,
        Point.CLEAR,
        "edits.early",
        alone=True,
        verdicts=frozenset({Verdict.CONTAMINATED, Verdict.WRONG}),
        summary="A registered block acts on after it was cleared.",
    ),
    _fault(
        "cache-unedited",
        before_edit,
        Point.RETURNED,
        "cache.all",
        verdicts=frozenset({Verdict.PARTIAL, Verdict.DROPPED}),
        summary="`tracer.cache` keeps what the layers gave before the block edited it.",
    ),
    _fault(
        "cache-short",
        short_list,
        Point.RETURNED,
        "cache.all",
        doses=(1,),
        verdicts=frozenset({Verdict.MISSING}),
        summary="`tracer.cache` keeps the first step alone.",
    ),
    _fault(
        "router-tie",
        tie_broken,
        Point.PART,
        "router.all",
        parts=("experts",),
        places=("middle", "last"),
        summary="The two best experts of one token change places.",
    ),
    _fault(
        "samples-swapped",
        swapped_ids,
        Point.RETURNED,
        "samples.all",
        backends=VLLM,
        quick=True,
        summary="Two samples of a prompt have each other's ids.",
    ),
    _fault(
        "seed-lost",
        other_seed,
        Point.ASKED,
        "sampling.drawn",
        quick=True,
        summary=("Every generation is drawn with a seed of its own, whatever was asked for."),
    ),
    _fault(
        "force-lost",
        lost,
        Point.FORCE,
        "sampling.forced",
        quick=True,
        summary="A forced id is not taken: the generation goes on with its own.",
    ),
    _fault(
        "force-other",
        next_id,
        Point.FORCE,
        "sampling.forced",
        summary="The generation goes on with another id than the forced one.",
    ),
    _fault(
        "chunked-prompt",
        last_chunk,
        Point.READ,
        "chunked.all",
        verdicts=frozenset({Verdict.STRUCTURE}),
        doses=(1, 16),
        places=("middle",),
        backends=("hf",),
        summary="Of a prompt that is split into chunks only the last rows are read.",
    ),
    _fault(
        "preempt-late",
        recomputed_step,
        Point.RETURNED,
        "preempt.all",
        verdicts=frozenset({Verdict.WRONG, Verdict.STRUCTURE}),
        doses=(9,),
        alone=True,
        summary=(
            "A request that was set aside reports a step twice, and all later ones a step late."
        ),
    ),
    _fault(
        "prefix-cache-kept",
        fewer_rows,
        Point.RETURNED,
        "repeat.kept",
        verdicts=frozenset({Verdict.STRUCTURE}),
        doses=(4,),
        backends=VLLM,
        alone=True,
        summary="With the prefix cache on, a repeated prompt has fewer rows.",
    ),
    _fault(
        "ids-other",
        other_ids,
        Point.RETURNED,
        "tokens.text",
        "tokens.ids",
        "tokens.one",
        summary="The model was given other ids than those of the prompt.",
    ),
)
