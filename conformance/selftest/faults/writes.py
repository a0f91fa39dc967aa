"""Faults of writing: an edit is lost, halved, doubled, misplaced or leaks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from conformance.direction import direction
from conformance.records import Precision, Side, Verdict
from conformance.selftest.fault import (
    SKIPPED,
    VLLM,
    Fault,
    Inexpressible,
    Moment,
    Point,
    Raw,
    Skipped,
)

DROPPED = frozenset({Verdict.DROPPED})
SCALED = frozenset({Verdict.MISSCALED})
ABLATE = ("ablation.first", "ablation.middle", "ablation.last")
OTHER = ("patching.late", "edits.early", "cache.all")
STEER = ("steering.first-small-all", "steering.middle-large-all", "steering.last-small-one")


#: Models with experts; each token uses some of them.
MIXTURES = ("mixtral", "qwen3_moe", "qwen3_next", "gpt_oss", "deepseek_v3")


def skipped(value: Tensor, now: Moment) -> Skipped:
    return SKIPPED


def own_again(value: Tensor, now: Moment) -> Raw:
    """Put the old output back, as if the edit had changed a copy."""
    return Raw(now.raw())


def first_half(value: Tensor, now: Moment) -> Raw:
    """Replace only the first of two summands."""
    output = now.raw()
    if not (isinstance(output, (tuple, list)) and len(output) == 2):
        raise Inexpressible("a layer's output has no second summand")
    if output[0].shape != output[1].shape or torch.equal(output[0], output[1]):
        raise Inexpressible("the second part is no summand")
    return Raw((value, output[1]))


def twice(value: Tensor, now: Moment) -> Tensor:
    return value + (value - _before(value, now))


def opposite(value: Tensor, now: Moment) -> Tensor:
    before = _before(value, now)
    return before - (value - before)


def partly(value: Tensor, now: Moment) -> Tensor:
    before = _before(value, now)
    return before + now.dose * (value - before)


def elsewhere(value: Tensor, now: Moment) -> Tensor:
    """Make an edit of the same size in another direction."""
    before = _before(value, now)
    size = (value - before).float().norm(dim=-1, keepdim=True)
    random_direction = direction(value.shape[-1], 1.0, 77).to(value.device).float()
    changed: Tensor = before.float() + size * random_direction
    return changed.to(value.dtype)


def last_token_only(value: Tensor, now: Moment) -> Tensor:
    before = _before(value, now)
    before[-1:] = value[-1:]
    return before


def every_token(value: Tensor, now: Moment) -> Tensor:
    """Apply the last token's edit to all tokens."""
    before = _before(value, now)
    return before + (value - before)[-1:]


def one_prompt(value: Tensor, now: Moment) -> Any:
    """Skip the write of the second prompt's block."""
    first = now.memory.setdefault("first", len(value))
    return value if len(value) == first else SKIPPED


def nearly_zero(value: Tensor, now: Moment) -> Tensor:
    return value + now.dose


def without_second(value: Tensor, now: Moment) -> Raw:
    output = now.raw()
    if not isinstance(output, (tuple, list)):
        raise Inexpressible("a layer's output is no tuple")
    return Raw((value,))


def shared(value: Tensor, now: Moment) -> Tensor:
    """Replace a module's input in place, so that its other readers get the new value too."""
    positional, keywords = now.raw()
    [tensor] = [
        argument for argument in (*positional, *keywords.values()) if isinstance(argument, Tensor)
    ]
    tensor[:] = value
    return value


def late_lost(value: Tensor, now: Moment) -> Any:
    """Skip a write to the second half of the layers, as if it came too late."""
    return SKIPPED if now.layer is not None and now.layer >= now.layers // 2 else value


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


def _fault(name: str, act: Any, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "side": Side.NNSIGHT,
        "point": Point.TAKEN,
        "cases": STEER,
        "verdicts": SCALED,
    }
    return Fault(id=name, act=act, **(defaults | more))


FAULTS = (
    _fault(
        "write-dropped",
        skipped,
        cases=(*ABLATE, *STEER, "cross_write.one", "cross_write.two", *OTHER),
        verdicts=DROPPED,
        quick=True,
        summary="A write has no effect.",
    ),
    _fault(
        "inplace-lost",
        own_again,
        cases=("ablation.middle", "steering.middle-small-all"),
        verdicts=DROPPED,
        summary="An edit lands in a copy, and the layer's own output goes on.",
    ),
    _fault(
        "write-dropped-bf16",
        skipped,
        cases=("ablation.middle", "steering.middle-large-all"),
        architectures=MIXTURES,
        models=("mixtral",),
        verdicts=DROPPED,
        # Near-ties of routers in bf16 must not hide that nothing was written.
        precision=Precision.BF16,
        summary="In bf16 alone a write has no effect, on a model with experts.",
    ),
    _fault(
        "write-half",
        first_half,
        cases=("ablation.middle", "ablation.first"),
        backends=VLLM,
        verdicts=frozenset({Verdict.MISSCALED, Verdict.PARTIAL, Verdict.DROPPED}),
        quick=True,
        summary="Of two summands only the first is replaced, and the residual stays.",
    ),
    _fault(
        "write-twice",
        twice,
        quick=True,
        summary="An edit acts twice.",
    ),
    _fault(
        "write-sign",
        opposite,
        summary="An edit acts with the opposite sign.",
    ),
    _fault(
        "write-partly",
        partly,
        cases=("steering.middle-large-all", "patching.early", "several_blocks.write"),
        doses=(0.5, 0.8),
        summary="An edit acts with a part of its size.",
    ),
    _fault(
        "write-elsewhere",
        elsewhere,
        cases=("steering.middle-large-all",),
        verdicts=SCALED,
        summary="An edit of the right size acts in another direction.",
    ),
    _fault(
        "write-tokens-lost",
        last_token_only,
        cases=("steering.middle-large-all",),
        verdicts=frozenset({Verdict.PARTIAL}),
        summary="An edit of all tokens reaches the last one alone.",
    ),
    _fault(
        "write-leaks",
        every_token,
        cases=("steering.middle-large-one",),
        verdicts=frozenset({Verdict.CONTAMINATED}),
        quick=True,
        summary="An edit of the last token reaches all of them.",
    ),
    # Half a per cent is little more than the noise floor: it is seen, but not classified.
    _fault(
        "write-leaks-little",
        every_token,
        cases=("steering.first-small-one", "steering.middle-small-one"),
        verdicts=frozenset({Verdict.CONTAMINATED, Verdict.DRIFT, Verdict.WRONG}),
        summary="A small edit of the last token reaches all of them.",
    ),
    _fault(
        "write-one-prompt",
        one_prompt,
        cases=("ablation.middle", "steering.middle-large-all"),
        verdicts=frozenset({Verdict.PARTIAL}),
        quick=True,
        summary="Of two prompts' edits one has no effect.",
    ),
    _fault(
        "write-not-zero",
        nearly_zero,
        cases=("ablation.middle",),
        doses=(1e-12,),
        # Successive norms enlarge it again, and then the gain sees it too.
        verdicts=frozenset({Verdict.WRONG, Verdict.MISSCALED}),
        quick=True,
        summary="A stream that is set to zero is nearly zero.",
    ),
    _fault(
        "write-tuple",
        without_second,
        cases=("cross_write.one",),
        backends=VLLM,
        alone=True,
        verdicts=frozenset({Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT}),
        short=True,
        summary="A layer's output is replaced by a tuple that lacks the second summand.",
    ),
    _fault(
        "given-dropped",
        skipped,
        point=Point.GIVEN,
        parts=("experts",),
        cases=("forced_experts.first", "forced_experts.last"),
        verdicts=DROPPED,
        summary="What is assigned to a router's input has no effect.",
    ),
    _fault(
        "given-shared",
        shared,
        point=Point.GIVEN,
        parts=("experts",),
        cases=("forced_experts.first", "forced_experts.last"),
        verdicts=frozenset({Verdict.MISSCALED, Verdict.WRONG}),
        summary="What is assigned to a router's input reaches the experts as well.",
    ),
    _fault(
        "write-late-half",
        late_lost,
        cases=("cross_write.two", "multigen.cross"),
        verdicts=DROPPED,
        summary="A write to a layer of the second half comes too late.",
    ),
)
