"""Faults of returning saved values: keys, steps, prompts and rows are mixed up or lost."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from conformance.records import Precision, Side, Site, Verdict
from conformance.selftest.fault import Fault, Moment, Point

Saved = dict[str, Tensor]

WRONG = frozenset({Verdict.WRONG})
MISSING = frozenset({Verdict.MISSING})
PAIR = ("read_all.pair",)
STEPS = ("multigen.read",)


def sites(saved: Saved) -> dict[Site, Tensor]:
    return {Site.parse(name): value for name, value in saved.items()}


def by_name(by_site: dict[Site, Tensor]) -> Saved:
    return {str(site): value for site, value in by_site.items()}


def prompt_shifted(saved: Saved, now: Moment) -> Saved:
    """Give each token of a prompt the log-probability of the next one."""
    return {
        str(site): value.roll(-1, dims=0) if site.name == "prompt" else value
        for site, value in sites(saved).items()
    }


def tempered(saved: Saved, now: Moment) -> Saved:
    """Divide the likeliest log-probabilities by a temperature."""
    return {
        str(site): (value / now.dose) if site.name == "top" else value
        for site, value in sites(saved).items()
    }


def random_steps(saved: Saved, now: Moment) -> Saved:
    """Replace streams and logits of every later step by random numbers."""
    drawn = torch.Generator().manual_seed(0)
    return {
        str(site): torch.randn(value.shape, generator=drawn).to(value)
        if site.step and value.is_floating_point()
        else value
        for site, value in sites(saved).items()
    }


def lost(saved: Saved, now: Moment) -> Saved:
    """Drop one layer's value; without a layer, drop the logits."""
    return {
        str(site): value
        for site, value in sites(saved).items()
        if (site.layer != now.at if now.at is not None else site.name != "logits")
    }


def error_lost(saved: Saved, now: Moment) -> Saved:
    """Drop what was saved after this layer, as if an error had ended the block unseen."""
    return {
        str(site): value
        for site, value in sites(saved).items()
        if site.layer is not None and now.at is not None and site.layer < now.at
    }


def first_only(saved: Saved, now: Moment) -> Saved:
    return {str(site): value for site, value in sites(saved).items() if site.prompt == 0}


def next_layer(saved: Saved, now: Moment) -> Saved:
    """Store every layer's value under the name of the previous one; the last keeps its own."""
    by_site = sites(saved)
    return {
        str(site): by_site.get(replace(site, layer=site.layer + 1), value)
        if site.layer is not None and now.at in (None, site.layer)
        else value
        for site, value in by_site.items()
    }


def last_step(saved: Saved, now: Moment) -> Saved:
    """Return the last step's value for every step."""
    by_site = sites(saved)
    last = max(site.step for site in by_site)
    return {
        str(site): by_site[replace(site, step=last)]
        if site.step and site.name == "stream"
        else value
        for site, value in by_site.items()
    }


def stale_step(saved: Saved, now: Moment) -> Saved:
    """In one step, return the streams of the previous step."""
    by_site = sites(saved)
    return {
        str(site): by_site[replace(site, step=site.step - 1)]
        if site.step == now.dose and site.name == "stream"
        else value
        for site, value in by_site.items()
    }


def repeated_step(saved: Saved, now: Moment) -> Saved:
    """Report one step twice, and all later ones a step late."""
    by_site = sites(saved)
    return {
        str(site): by_site[replace(site, step=site.step - 1)] if site.step >= now.dose else value
        for site, value in by_site.items()
    }


def short_list(saved: Saved, now: Moment) -> Saved:
    return {str(site): value for site, value in sites(saved).items() if site.step < now.dose}


def swapped_prompts(saved: Saved, now: Moment) -> Saved:
    """Swap the logits of two prompts that saved the same name."""
    by_site = sites(saved)
    return {
        str(site): by_site[replace(site, prompt=1 - site.prompt)]
        if site.name == "logits"
        else value
        for site, value in by_site.items()
    }


def one_wins(saved: Saved, now: Moment) -> Saved:
    """Return the second prompt's value for two prompts that saved the same name."""
    by_site = sites(saved)
    return {str(site): by_site[replace(site, prompt=1)] for site in by_site}


def span(saved: Saved, now: Moment) -> Saved:
    """Cut the batch in the wrong place: a prompt has rows of its neighbour."""
    by_site = sites(saved)
    shifted = dict(by_site)
    for site, value in by_site.items():
        neighbour = by_site.get(replace(site, prompt=1))
        if site.prompt == 0 and site.layer is not None and neighbour is not None:
            batch = torch.cat([value, neighbour]).roll(-int(now.dose), dims=0)
            shifted[site] = batch[: len(value)]
            shifted[replace(site, prompt=1)] = batch[len(value) :]
    return by_name(shifted)


def whole_batch(saved: Saved, now: Moment) -> Saved:
    """Leave the batch uncut: both prompts have all the rows."""
    by_site = sites(saved)
    uncut = dict(by_site)
    for site, value in by_site.items():
        neighbour = by_site.get(replace(site, prompt=1))
        if site.prompt == 0 and site.layer is not None and neighbour is not None:
            batch = torch.cat([value, neighbour])
            uncut[site] = uncut[replace(site, prompt=1)] = batch
    return by_name(uncut)


def one_bit(saved: Saved, now: Moment) -> Saved:
    """Flip the last bit of one number that arrived at a target."""
    by_site = sites(saved)
    for site, value in by_site.items():
        if site.name == "arrived" and site.run == "edited":
            value.view(torch.int16).view(-1)[0] ^= 1
            break
    return by_name(by_site)


def bit_beside(saved: Saved, now: Moment) -> Saved:
    """Flip a bit of the first token's row although only the last token is edited."""
    by_site = sites(saved)
    for site, value in by_site.items():
        if site.name == "stream" and site.run == "edited":
            value.view(torch.int16).view(-1)[0] ^= 1
            break
    return by_name(by_site)


def extra_token(ids: tuple[tuple[int, ...], ...], now: Moment) -> tuple[tuple[int, ...], ...]:
    return tuple((1, *row) if now.dose > 0 else row[1:] for row in ids)


def _fault(name: str, act: Any, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.NNSIGHT,
        "point": Point.RETURNED,
        "cases": PAIR,
        "verdicts": WRONG,
    }
    return Fault(id=name, act=act, **(defaults | more))


FAULTS = (
    _fault(
        "logprobs-shifted",
        prompt_shifted,
        cases=("logprobs.greedy",),
        says=("row of the next token",),
        quick=True,
        summary="Each token of a prompt is given the log-probability of the next one.",
    ),
    _fault(
        "logprobs-tempered",
        tempered,
        cases=("logprobs.greedy",),
        says=("times the right", "half the right"),
        doses=(1.1, 2.0),
        summary="The likeliest log-probabilities are divided by a temperature.",
    ),
    _fault(
        "save-unbound",
        lost,
        verdicts=MISSING,
        places=("", "first", "last"),
        quick=True,
        summary="A value was saved without being bound to a name, and is not there.",
    ),
    _fault(
        "error-lost",
        error_lost,
        verdicts=MISSING,
        places=("middle",),
        summary="An error ended the block unseen: everything saved after it is not there.",
    ),
    _fault(
        "async-first",
        first_only,
        verdicts=MISSING,
        summary="Of several prompts only the first one's observations come back.",
    ),
    _fault(
        "layer-next",
        next_layer,
        places=("first", "middle"),
        says=("next layer",),
        summary="Values are filed under the layer before theirs.",
    ),
    _fault(
        "alias-list",
        last_step,
        cases=STEPS,
        verdicts=frozenset({Verdict.ALIASED, Verdict.WRONG}),
        summary="A list of what the steps read holds the last step's value at each place.",
    ),
    _fault(
        "stale-step",
        stale_step,
        cases=STEPS,
        doses=(2, 4),
        says=("previous step",),
        verdicts=frozenset({Verdict.WRONG, Verdict.STRUCTURE}),
        summary="One step's streams are those of the step before.",
    ),
    _fault(
        "preempt",
        repeated_step,
        cases=STEPS,
        doses=(2, 5),
        verdicts=frozenset({Verdict.WRONG, Verdict.STRUCTURE}),
        says=("previous step",),
        summary="A step is reported twice, and all later ones come a step late.",
    ),
    _fault(
        "steps-random",
        random_steps,
        cases=STEPS,
        architectures=("mixtral", "qwen3_moe", "qwen3_next", "gpt_oss", "deepseek_v3"),
        models=("mixtral",),
        # There one row of a step may be another expert's, but not the rows of every step.
        precision=Precision.BF16,
        summary=(
            "In bf16 alone the streams and logits of every later step are random "
            "numbers, on a model with experts."
        ),
    ),
    _fault(
        "name-clash",
        swapped_prompts,
        cases=("clean.pair",),
        says=("rows of prompt", "another prompt"),
        quick=True,
        summary="Two prompts that saved one name got each other's logits.",
    ),
    _fault(
        "name-clash-one",
        one_wins,
        cases=(*PAIR, "batch.six"),
        verdicts=frozenset({Verdict.STRUCTURE}),
        summary="Two prompts saved one name, and the second one's value stands for both.",
    ),
    _fault(
        "span",
        span,
        cases=(*PAIR, "batch.six"),
        doses=(1, -1),
        says=("rows of the batch", "row of the"),
        summary="The batch is cut in the wrong place: a prompt has rows of its neighbour.",
    ),
    _fault(
        "token-axis",
        whole_batch,
        cases=(*PAIR, "batch.six"),
        verdicts=frozenset({Verdict.STRUCTURE}),
        says=("rows of prompts",),
        summary="Nobody cut the batch: every prompt has the rows of all.",
    ),
    _fault(
        "one-bit",
        one_bit,
        cases=("cross_write.two",),
        quick=True,
        summary=(
            "The last bit of one number that arrived at another layer is not that of the source."
        ),
    ),
    _fault(
        "bit-beside",
        bit_beside,
        cases=("steering.middle-large-one",),
        verdicts=frozenset({Verdict.CONTAMINATED}),
        summary=("Beside an edit of the last token one bit of the first token's row changes."),
    ),
    _fault(
        "bos",
        extra_token,
        point=Point.PROMPT_IDS,
        doses=(1, -1),
        cases=("clean.pair", "tokens.text"),
        side=Side.ENGINE,
        verdicts=frozenset({Verdict.STRUCTURE}),
        quick=True,
        summary="The prompt has one id too many in front, or one too few.",
    ),
)
