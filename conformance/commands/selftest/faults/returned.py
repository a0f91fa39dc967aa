"""Faults of returning saved values: keys, steps, prompts and rows are mixed up or lost.

Their acts get the observations of a case by site, and return those that are kept.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch
from torch import Tensor

from conformance.commands.selftest.fault import STAGES, VLLM, FaultFamily, Moment, Point
from conformance.commands.selftest.faults.operators import flip_bit
from conformance.commands.selftest.faults.writes import MIXTURES
from conformance.spec.records import Precision, Side, Site, Verdict

Saved = dict[Site, Tensor]
#: A site, its value, all values and the moment → the value instead; None to drop it.
SiteChange = Callable[[Site, Tensor, Saved, Moment], Tensor | None]


def each_site(change: SiteChange, saved: Saved, now: Moment) -> Saved:
    """Change or drop each value."""
    changed = {site: change(site, value, saved, now) for site, value in saved.items()}
    return {site: value for site, value in changed.items() if value is not None}


PAIR = ("read_all.pair",)
SEVERAL = (*PAIR, "batch.six")
OFF_OR_SHAPE = (Verdict.WRONG, Verdict.STRUCTURE)

#: Faults of single values, and faults of all values of a case together.
SITES = FaultFamily(
    each_site,
    side=Side.NNSIGHT,
    point=Point.RETURNED,
    cases=PAIR,
    verdicts=Verdict.WRONG,
    everywhere=True,
)
STEPS = FaultFamily(each_site, **SITES.common | {"cases": "multigen.read"})
CASES = FaultFamily(**SITES.common)


# --- values are dropped -------------------------------------------------------


@SITES.fault("save-unbound", verdicts=Verdict.MISSING, places=("", "first", "last"), quick=True)
def lost(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor | None:
    """A value was saved without being bound to a name, and is not there."""
    is_lost = site.name == "logits" if now.at is None else site.layer == now.at
    return None if is_lost else value


@SITES.fault("error-lost", verdicts=Verdict.MISSING, places="middle")
def error_lost(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor | None:
    """An error ended the block unseen: everything saved after it is not there."""
    is_before = site.layer is not None and now.at is not None and site.layer < now.at
    return value if is_before else None


@SITES.fault("async-first", verdicts=Verdict.MISSING)
def first_only(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor | None:
    """Of several prompts only the first one's observations come back."""
    return value if site.prompt == 0 else None


SITES.add(
    "neighbour-lost",
    first_only,
    "What a block saved that stood beside one that raised is gone.",
    cases="staggered.raises-trace",
    backends=VLLM,
    verdicts=Verdict.MISSING,
)


@SITES.fault("cache-short", cases="cache.all", doses=1, verdicts=Verdict.MISSING)
def short_list(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor | None:
    """`tracer.cache` keeps the first step alone."""
    return value if site.step < now.dose else None


STEPS.add(
    "pp-container",
    short_list,
    "Of a list over the steps a stage's shorter copy is reported.",
    side=Side.PIPELINE,
    backends=STAGES,
    doses=(7, 3),
    verdicts=Verdict.MISSING,
)


@SITES.fault(
    "pp-save-lost", side=Side.PIPELINE, backends=STAGES, verdicts=Verdict.MISSING, quick=True
)
def last_stage_only(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor | None:
    """What the first stage's layers saved is not reported."""
    return value if site.layer is None or site.layer >= now.layers // 2 else None


@SITES.fault(
    "prefix-cache-again", cases="repeat.forgotten", doses=(1, 4), verdicts=Verdict.STRUCTURE
)
def fewer_rows(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """A repeated prompt has fewer rows: its first tokens were not computed again."""
    return value[int(now.dose) :] if site.name == "third" else value


SITES.add(
    "prefix-cache-kept",
    fewer_rows,
    "With the prefix cache on, a repeated prompt has fewer rows.",
    cases="repeat.kept",
    doses=4,
    backends=VLLM,
    alone=True,
    verdicts=Verdict.STRUCTURE,
)


# --- another site's value -----------------------------------------------------


@SITES.fault("layer-next", places=("first", "middle"), says="next layer")
def next_layer(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """Values are filed under the layer before theirs."""
    if site.layer is None or now.at not in (None, site.layer):
        return value
    return saved.get(replace(site, layer=site.layer + 1), value)  # the last keeps its own


SITES.add(
    "raw-overwritten",
    next_layer,
    "A layer's output, kept without a copy, holds the next layer's at the end.",
    cases="raw.read_first",
    backends="hf",
    verdicts=(Verdict.WRONG, Verdict.ALIASED),
    places=("first", "middle"),
    quick=True,
)


@STEPS.fault("alias-list", verdicts=(Verdict.ALIASED, Verdict.WRONG))
def last_step(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """A list of what the steps read holds the last step's value at each place."""
    last = max(other.step for other in saved)
    return saved[replace(site, step=last)] if site.step and site.name == "stream" else value


@STEPS.fault("stale-step", doses=(2, 4), says="previous step", verdicts=OFF_OR_SHAPE)
def stale_step(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """One step's streams are those of the step before."""
    is_stale = site.step == now.dose and site.name == "stream"
    return saved[replace(site, step=site.step - 1)] if is_stale else value


@STEPS.fault("preempt", doses=(2, 5), verdicts=OFF_OR_SHAPE, says="previous step")
def repeated_step(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """A step is reported twice, and all later ones come a step late."""
    return saved[replace(site, step=site.step - 1)] if site.step >= now.dose else value


@SITES.fault("preempt-late", cases="preempt.all", doses=9, alone=True, verdicts=OFF_OR_SHAPE)
def recomputed_step(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """A request that was set aside reports a step twice, and all later ones a step late."""
    return repeated_step(site, value, saved, now) if site.prompt == 1 else value


@SITES.fault(
    "name-clash", cases="clean.pair", says=("rows of prompt", "another prompt"), quick=True
)
def swapped_prompts(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """Two prompts that saved one name got each other's logits."""
    return saved[replace(site, prompt=1 - site.prompt)] if site.name == "logits" else value


@SITES.fault("samples-swapped", cases="samples.all", backends=VLLM, quick=True)
def swapped_ids(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """Two samples of a prompt have each other's ids."""
    return saved[replace(site, prompt=1 - site.prompt)] if site.name == "sampled" else value


@SITES.fault("name-clash-one", cases=SEVERAL, verdicts=Verdict.STRUCTURE)
def one_wins(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """Two prompts saved one name, and the second one's value stands for both."""
    return saved[replace(site, prompt=1)]


@SITES.fault("cache-unedited", cases="cache.all", verdicts=(Verdict.PARTIAL, Verdict.DROPPED))
def before_edit(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """`tracer.cache` keeps what the layers gave before the block edited it."""
    is_edited = site.run == "edited" and site.name == "stream"
    return saved[replace(site, run="clean")] if is_edited else value


@CASES.fault("clients-exchanged", cases="tenants.trace", verdicts=OFF_OR_SHAPE, quick=True)
def exchanged(saved: Saved, now: Moment) -> Saved:
    """Two of several requests get each other's saves."""
    swapped = {1: 2, 2: 1}
    return {
        replace(site, prompt=swapped.get(site.prompt, site.prompt)): value
        for site, value in saved.items()
    }


@CASES.fault("stop-missed", cases="staggered.stop-trace", backends=VLLM, verdicts=Verdict.STRUCTURE)
def continue_past_stop(saved: Saved, now: Moment) -> Saved:
    """Generate one more token after the stop id."""
    last = max(site.step for site in saved if site.prompt == 0)
    further = {
        replace(site, step=last + 1): value.clone()
        for site, value in saved.items()
        if site.name == "sampled" and site.prompt == 0 and site.step == last
    }
    return saved | further


# --- rows of a neighbour in the batch -----------------------------------------


@CASES.fault("span", cases=SEVERAL, doses=(1, -1), says=("rows of the batch", "row of the"))
def span(saved: Saved, now: Moment) -> Saved:
    """The batch is cut in the wrong place: a prompt has rows of its neighbour."""
    shifted = dict(saved)
    for site, value, neighbour in _neighbours(saved):
        batch = torch.cat([value, neighbour]).roll(-int(now.dose), dims=0)
        shifted[site] = batch[: len(value)]
        shifted[replace(site, prompt=1)] = batch[len(value) :]
    return shifted


@CASES.fault("token-axis", cases=SEVERAL, verdicts=Verdict.STRUCTURE, says="rows of prompts")
def whole_batch(saved: Saved, now: Moment) -> Saved:
    """Nobody cut the batch: every prompt has the rows of all."""
    uncut = dict(saved)
    for site, value, neighbour in _neighbours(saved):
        uncut[site] = uncut[replace(site, prompt=1)] = torch.cat([value, neighbour])
    return uncut


@SITES.fault(
    "neighbour-edited",
    cases="tenants.trace",
    doses=(0.002, 0.5),
    verdicts=(Verdict.WRONG, Verdict.CONTAMINATED),
    quick=True,
)
def touched(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """A share of what an edit adds to its own request is in the rows of a neighbour that edits
    nothing.
    """
    edited = replace(site, prompt=1)
    of_untouched = site.prompt == 0 and site.run == "edited" and site.name == "stream"
    if not of_untouched or edited not in saved:
        return value
    change = saved[edited].float() - saved[replace(edited, run="clean")].float()
    return (value.float() + now.dose * change.mean(dim=0)).to(value.dtype)


def _neighbours(saved: Saved) -> list[tuple[Site, Tensor, Tensor]]:
    """Return the sites of the first prompt's layers, with both prompts' values."""
    return [
        (site, value, saved[beside])
        for site, value in saved.items()
        if site.prompt == 0
        and site.layer is not None
        and (beside := replace(site, prompt=1)) in saved
    ]


# --- other numbers ------------------------------------------------------------


@SITES.fault("logprobs-shifted", cases="logprobs.greedy", says="row of the next token", quick=True)
def prompt_shifted(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """Each token of a prompt is given the log-probability of the next one."""
    return value.roll(-1, dims=0) if site.name == "prompt" else value


@SITES.fault(
    "logprobs-tempered",
    cases="logprobs.greedy",
    says=("times the right", "half the right"),
    doses=(1.1, 2.0),
)
def tempered(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """The likeliest log-probabilities are divided by a temperature."""
    return value / now.dose if site.name == "top" else value


@STEPS.fault(
    "steps-random",
    architectures=MIXTURES,
    models="mixtral",
    # There one row of a step may be another expert's, but not the rows of every step.
    precision=Precision.BF16,
)
def random_steps(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """In bf16 alone the streams and logits of every later step are random numbers, on a model with
    experts.
    """
    if not site.step or not value.is_floating_point():
        return value
    drawn = now.memory.setdefault("drawn", torch.Generator().manual_seed(0))
    return torch.randn(value.shape, generator=drawn).to(value)


@SITES.fault("lasting", cases=("repeat.forgotten", "batch.neighbours"))
def lasting(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """What an earlier run's block wrote is still there."""
    is_written = site.name in {"second", "beside_another"} and site.layer == now.layers - 1
    return value * 0 if is_written else value


@SITES.fault("error-swallowed", cases=("errors.before", "errors.order"), quick=True)
def swallowed(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """The error that a block raised does not come out of the trace."""
    return torch.tensor(list(b"nothing"), dtype=torch.uint8) if site.name == "error" else value


@SITES.fault("error-lasting", cases=("errors.between", "errors.unknown"))
def still_there(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """The trace after one that failed has lost a layer's values."""
    return torch.zeros_like(value) if site.layer == 0 else value


@SITES.fault("ids-other", cases=("tokens.text", "tokens.ids", "tokens.one"))
def other_ids(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """The model was given other ids than those of the prompt."""
    return value.flip(0) + 1 if site.name == "ids" else value


@SITES.fault("ids-high", cases="tokens.ids")
def one_higher(site: Site, value: Tensor, saved: Saved, now: Moment) -> Tensor:
    """Each id is one too high, as if it were a number that rounding moves."""
    return value + 1 if site.name == "ids" else value


@CASES.fault(
    "bos",
    point=Point.PROMPT_IDS,
    doses=(1, -1),
    cases=("clean.pair", "tokens.text"),
    side=Side.ENGINE,
    verdicts=Verdict.STRUCTURE,
    quick=True,
)
def extra_token(ids: tuple[tuple[int, ...], ...], now: Moment) -> tuple[tuple[int, ...], ...]:
    """The prompt has one id too many in front, or one too few."""
    return tuple((1, *row) if now.dose > 0 else row[1:] for row in ids)


# --- one bit ------------------------------------------------------------------


@CASES.fault("one-bit", cases="cross_write.two", quick=True)
def arrived_bit(saved: Saved, now: Moment) -> Saved:
    """The last bit of one number that arrived at another layer is not that of the source."""
    return _one_bit(saved, lambda site: site.name == "arrived" and site.run == "edited")


@CASES.fault("bit-beside", cases="steering.middle-large-one", verdicts=Verdict.CONTAMINATED)
def bit_beside(saved: Saved, now: Moment) -> Saved:
    """Beside an edit of the last token one bit of the first token's row changes."""
    return _one_bit(saved, lambda site: site.name == "stream" and site.run == "edited")


@CASES.fault(
    "one-bit-again",
    cases=("batch.neighbours", "repeat.forgotten", "save_alias.mlp", "skip.middle-alone"),
    # The bits before the skipped layer may not change; that is reported first.
    verdicts=(Verdict.WRONG, Verdict.CONTAMINATED),
    quick=True,
)
def repeated_bit(saved: Saved, now: Moment) -> Saved:
    """The last bit of one number that must repeat another does not."""
    same = {"beside_another", "second", "kept", "before"}
    return _one_bit(saved, lambda site: site.name in same and site.run != "clean")


@CASES.fault(
    "pp-one-bit",
    side=Side.PIPELINE,
    backends=STAGES,
    cases=("read_all.pair", "clean.pair"),
    quick=True,
    by_bits=True,
)
def staged_bit(saved: Saved, now: Moment) -> Saved:
    """The last bit of one number differs from that of a single stage."""
    return _one_bit(saved, lambda _: True)


CASES.add(
    "known-bit",
    staged_bit,
    "The same, where known.yaml predicts the values but names no rule that may be broken.",
    side=Side.UNDECIDED,  # the engine without nnsight differs from the reference too
    cases="clean.pair",
    backends=STAGES,
    architectures="bloom",
    by_bits=True,
)


def _one_bit(saved: Saved, wanted: Callable[[Site], bool]) -> Saved:
    """Flip the last bit of one number of the first value wanted."""
    for site, value in saved.items():
        if wanted(site):
            flip_bit(value)
            break
    return saved
