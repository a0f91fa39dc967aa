"""Faults of writing: an edit is lost, halved, doubled, misplaced or leaks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.commands.selftest.fault import (
    SKIPPED,
    VLLM,
    FaultFamily,
    Inexpressible,
    Moment,
    Point,
    Raw,
    Skipped,
)
from conformance.spec.direction import direction
from conformance.spec.records import Precision, Side, Verdict

ABLATE = ("ablation.first", "ablation.middle", "ablation.last")
OTHER = ("patching.late", "edits.early", "cache.all")
STEER = ("steering.first-small-all", "steering.middle-large-all", "steering.last-small-one")
LARGE = "steering.middle-large-all"
#: Models with experts; each token uses some of them.
MIXTURES = ("mixtral", "qwen3_moe", "qwen3_next", "gpt_oss", "deepseek_v3")

TAKEN = FaultFamily(side=Side.NNSIGHT, point=Point.TAKEN, cases=STEER, verdicts=Verdict.MISSCALED)
#: What is assigned to a router's input.
GIVEN = FaultFamily(
    side=Side.NNSIGHT,
    point=Point.GIVEN,
    cases=("forced_experts.first", "forced_experts.last"),
    parts="experts",
)


def skipped(value: Any, now: Moment) -> Skipped:
    return SKIPPED


TAKEN.add(
    "write-dropped",
    skipped,
    "A write has no effect.",
    cases=(*ABLATE, *STEER, "cross_write.one", "cross_write.two", "multigen.cross", *OTHER),
    verdicts=Verdict.DROPPED,
    quick=True,
)
TAKEN.add(
    "write-dropped-bf16",
    skipped,
    "In bf16 alone a write has no effect, on a model with experts.",
    cases=("ablation.middle", LARGE),
    architectures=MIXTURES,
    models="mixtral",
    verdicts=Verdict.DROPPED,
    # Near-ties of routers in bf16 must not hide that nothing was written.
    precision=Precision.BF16,
)
TAKEN.add(
    "write-dropped-mixture",
    skipped,
    "In float32 a large write has no effect on a model with experts, whose routers may tie.",
    cases=("ablation.middle", LARGE),
    architectures=MIXTURES,
    models="mixtral",
    verdicts=Verdict.DROPPED,
)
GIVEN.add(
    "given-dropped",
    skipped,
    "What is assigned to a router's input has no effect.",
    verdicts=Verdict.DROPPED,
)


@TAKEN.fault(
    "inplace-lost",
    cases=("ablation.middle", "steering.middle-small-all"),
    verdicts=Verdict.DROPPED,
)
def own_again(value: Tensor, now: Moment) -> Raw:
    """An edit lands in a copy, and the layer's own output goes on."""
    return Raw(now.raw())


@TAKEN.fault(
    "write-half",
    cases=("ablation.middle", "ablation.first"),
    backends=VLLM,
    verdicts=(Verdict.MISSCALED, Verdict.PARTIAL, Verdict.DROPPED),
    quick=True,
)
def first_half(value: Tensor, now: Moment) -> Raw:
    """Of two summands only the first is replaced, and the residual stays."""
    output = now.raw()
    if not (isinstance(output, (tuple, list)) and len(output) == 2):
        raise Inexpressible("a layer's output has no second summand")
    if output[0].shape != output[1].shape or torch.equal(output[0], output[1]):
        raise Inexpressible("the second part is no summand")
    return Raw((value, output[1]))


@TAKEN.fault(
    "write-partly", cases=(LARGE, "patching.early", "several_blocks.write"), doses=(0.5, 0.8)
)
def partly(value: Tensor, now: Moment) -> Tensor:
    """An edit acts with a part of its size."""
    before = _before(value, now)
    return before + now.dose * (value - before)


TAKEN.add("write-twice", partly, "An edit acts twice.", doses=2.0, quick=True)
TAKEN.add("write-sign", partly, "An edit acts with the opposite sign.", doses=-1.0)
TAKEN.add(
    "write-size-bf16",
    partly,
    "In bf16 alone a write acts twice, or with the opposite sign, on a model with experts.",
    cases=("ablation.middle", LARGE),
    doses=(2.0, -1.0),
    architectures=MIXTURES,
    models="mixtral",
    precision=Precision.BF16,
)
# Its clean run is off already, and an entry of known.yaml says how: that excuses no write.
TAKEN.add(
    "known-write",
    partly,
    "A small write is 15 % too large, where known.yaml predicts another definition of the model.",
    side=Side.UNDECIDED,  # the engine without nnsight differs from the reference too
    cases="steering.middle-small-one",
    doses=1.15,
    architectures="bloom",
    backends=VLLM,
    verdicts=(Verdict.WRONG, Verdict.MISSCALED),
)


@TAKEN.fault("write-elsewhere", cases=LARGE)
def elsewhere(value: Tensor, now: Moment) -> Tensor:
    """An edit of the right size acts in another direction."""
    before = _before(value, now)
    size = (value - before).float().norm(dim=-1, keepdim=True)
    random_direction = direction(value.shape[-1], 1.0, 77).to(value.device).float()
    changed: Tensor = before.float() + size * random_direction
    return changed.to(value.dtype)


@TAKEN.fault("write-tokens-lost", cases=LARGE, verdicts=Verdict.PARTIAL)
def last_token_only(value: Tensor, now: Moment) -> Tensor:
    """An edit of all tokens reaches the last one alone."""
    before = _before(value, now)
    before[-1:] = value[-1:]
    return before


@TAKEN.fault(
    "write-leaks", cases="steering.middle-large-one", verdicts=Verdict.CONTAMINATED, quick=True
)
def every_token(value: Tensor, now: Moment) -> Tensor:
    """An edit of the last token reaches all of them."""
    before = _before(value, now)
    return before + (value - before)[-1:]


TAKEN.add(
    "write-leaks-little",
    every_token,
    "A small edit of the last token reaches all of them.",
    cases=("steering.first-small-one", "steering.middle-small-one"),
    # Half a per cent is little more than the noise floor: it is seen, but not classified.
    verdicts=(Verdict.CONTAMINATED, Verdict.DRIFT, Verdict.WRONG),
)


@TAKEN.fault(
    "write-one-prompt", cases=("ablation.middle", LARGE), verdicts=Verdict.PARTIAL, quick=True
)
def one_prompt(value: Tensor, now: Moment) -> Any:
    """Of two prompts' edits one has no effect."""
    first = now.memory.setdefault("first", len(value))
    return value if len(value) == first else SKIPPED


@TAKEN.fault(
    "write-not-zero",
    cases="ablation.middle",
    doses=1e-12,
    # Successive norms enlarge it again, and then the gain sees it too.
    verdicts=(Verdict.WRONG, Verdict.MISSCALED),
    quick=True,
)
def nearly_zero(value: Tensor, now: Moment) -> Tensor:
    """A stream that is set to zero is nearly zero."""
    return value + now.dose


@TAKEN.fault(
    "write-tuple",
    cases="cross_write.one",
    backends=VLLM,
    alone=True,
    verdicts=(Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT),
    short=True,
)
def without_second(value: Tensor, now: Moment) -> Raw:
    """A layer's output is replaced by a tuple that lacks the second summand."""
    if not isinstance(now.raw(), (tuple, list)):
        raise Inexpressible("a layer's output is no tuple")
    return Raw((value,))


@GIVEN.fault("given-shared", verdicts=(Verdict.MISSCALED, Verdict.WRONG))
def shared(value: Tensor, now: Moment) -> Tensor:
    """What is assigned to a router's input reaches the experts as well."""
    positional, keywords = now.raw()
    [tensor] = [
        argument for argument in (*positional, *keywords.values()) if isinstance(argument, Tensor)
    ]
    tensor[:] = value  # in place, so that its other readers get the new value too
    return value


def _before(value: Tensor, now: Moment) -> Tensor:
    """Return the stream as it was, in the shape of what is written."""
    output = now.raw()
    summands = list(output) if isinstance(output, (tuple, list)) else [output]
    rows = [
        summand[0] if summand.ndim == 3 else summand
        for summand in summands
        if isinstance(summand, Tensor)
    ]
    stream = rows[0] if len(rows) == 1 or rows[0].shape != rows[1].shape else rows[0] + rows[1]
    return stream[-len(value) :].clone()  # padding comes first
