"""Faults of what a trace asks for and gets: skip, stop, lens, logits, ids and parameters."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch.nn import functional

from conformance.commands.selftest.fault import VLLM, FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.operators import scaled
from conformance.commands.selftest.faults.writes import skipped
from conformance.spec.records import Precision, Side, Verdict

TRACE = FaultFamily(side=Side.NNSIGHT, verdicts=Verdict.WRONG)
LOGITS = FaultFamily(
    side=Side.NNSIGHT, point=Point.LOGITS, cases="clean.pair", verdicts=Verdict.WRONG
)
#: The engine receives other parameters than the trace requests.
ASKED = FaultFamily(side=Side.NNSIGHT, point=Point.ASKED, verdicts=Verdict.WRONG)


@TRACE.fault(
    "skip-dual",
    point=Point.SKIP,
    cases="skip.middle-alone",
    verdicts=(Verdict.ERROR, Verdict.CRASH, Verdict.TIMEOUT),
    backends=VLLM,
    alone=True,
    short=True,
)
def alone(value: Any, now: Moment) -> Any:
    """A layer that returns two summands is skipped with one tensor."""
    if not isinstance(value, tuple):
        raise Inexpressible("a layer's output is one tensor")
    return value[0] + value[1]


TRACE.add(
    "skip-lost",
    skipped,
    "A layer that is to be skipped runs all the same.",
    point=Point.SKIP,
    cases=("skip.middle-alone", "skip.last-alone"),
    verdicts=Verdict.DROPPED,
    quick=True,
)


@TRACE.fault("lens-unnormed", point=Point.LENS, cases="logit_lens.all", quick=True)
def unnormed(value: Tensor, now: Moment) -> Tensor:
    """The logit lens applies the head to the stream without the final norm."""
    lm, stream = now.raw()
    head = lm.model
    for name in lm.layers.parts.head.split("."):
        head = getattr(head, name)
    return functional.linear(stream, head.weight)[:, : value.shape[-1]]


@TRACE.fault(
    "stop-lost",
    point=Point.STOP,
    cases=("stop.early", "stop.late"),
    verdicts=Verdict.STRUCTURE,
    quick=True,
)
def never(value: Any, now: Moment) -> bool:
    """`tracer.stop` does not stop."""
    return False


TRACE.add(
    "edit-stays",
    never,
    "A registered block acts on after it was cleared.",
    point=Point.CLEAR,
    cases="edits.early",
    alone=True,
    verdicts=(Verdict.CONTAMINATED, Verdict.WRONG),
)


@TRACE.fault("result-early", point=Point.RESULT, cases="result.all", quick=True)
def one_early(value: list[Tensor], now: Moment) -> list[Tensor]:
    """`tracer.result` has every id one place late."""
    return [torch.zeros_like(value[0]), *value[:-1]]


TRACE.add(
    "force-lost",
    skipped,
    "A forced id is not taken: the generation goes on with its own.",
    point=Point.FORCE,
    cases="sampling.forced",
    quick=True,
)


@LOGITS.fault("logits-place", doses=(4.0, 1.0), verdicts=(Verdict.WRONG, Verdict.DRIFT))
def with_cap(value: Tensor, now: Moment) -> Tensor:
    """The logits carry a soft cap that the other side's have not."""
    cap = now.dose * value.float().abs().max()
    capped: Tensor = cap * torch.tanh(value.float() / cap)
    return capped.to(value.dtype)


LOGITS.add(
    "logits-scale",
    scaled,
    "The logits are multiplied by a constant.",
    doses=(0.0625, 1.5),
    says=("times the right", "multiple of the right", "embedding's"),
    quick=True,
)


@LOGITS.fault("logits-shift", doses=(0.5, 8.0), quick=True)
def shifted(value: Tensor, now: Moment) -> Tensor:
    """A constant is added to all logits."""
    return value.float() + now.dose


@LOGITS.fault(
    "samples-dtype",
    point=Point.CHOICE,
    verdicts=Verdict.DTYPE,
    cases=("clean.pair", "multigen.read"),
)
def int32(value: Tensor, now: Moment) -> Tensor:
    """Sampled ids are int32, not int64."""
    return value.to(torch.int32)


@LOGITS.fault("token-other", point=Point.CHOSEN, doses=1.0, cases="clean.alone", quick=True)
def another(value: Tensor, now: Moment) -> Tensor:
    """The id that is reported is not the one that was chosen."""
    return (value + int(now.dose)) % 500


@ASKED.fault(
    "defaults",
    cases="clean.pair",
    backends=VLLM,
    verdicts=(Verdict.WRONG, Verdict.STRUCTURE, Verdict.MISSING),
)
def nothing_asked(how: Any, now: Moment) -> Any:
    """A generation is asked for without parameters: vLLM then draws 16 tokens at temperature 1."""
    return None


@ASKED.fault(
    "refused-bf16",
    cases="clean.pair",
    verdicts=Verdict.UNSUPPORTED,
    precision=Precision.BF16,
)
def refused(how: Any, now: Moment) -> Any:
    """A case that float32 passes is refused in bf16."""
    raise Inexpressible("no kernel for this precision")


@ASKED.fault("seed-lost", cases="sampling.drawn", quick=True)
def other_seed(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Every generation is drawn with a seed of its own, whatever was asked for."""
    now.memory["drawn"] = now.memory.get("drawn", 0) + 1
    return how | {"seed": how["seed"] + now.memory["drawn"]}


# Many draws at the usual temperature and at a lower one; from all ids, and from the likeliest.
@ASKED.fault("temperature-lost", cases=("drawing.0.5-1.0", "drawing_first.0.7-0"))
def usual_temperature(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Ids are drawn at temperature 1, whatever was asked for."""
    return how | {"temperature": 1.0}


@ASKED.fault("temperature-low", cases="drawing_first.1.0-0")
def colder(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Ids are drawn at 0.7 of the temperature that was asked for."""
    return how | {"temperature": how["temperature"] * 0.7}


@ASKED.fault("top-p-lost", cases=("drawing.0.5-0.7", "drawing.1.0-0.7"))
def no_top_p(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Ids are drawn from all, not from the likeliest that hold the share asked for."""
    return how | {"top_p": 1.0}


@ASKED.fault("top-k-lost", cases=("drawing_first.1.0-20", "drawing_first.0.7-20"))
def no_top_k(how: dict[str, Any], now: Moment) -> dict[str, Any]:
    """Ids are drawn from all, not from as many of the likeliest as asked for."""
    return how | {"top_k": 0}


# The engine generates another id than that of the largest logit, in transformers' `generate` loop
# or in vLLM's sampler, and goes on from it. So ids, text and all later steps agree; only the logits
# of that one step differ.

#: The logits of a step, one row per request → the logits that its ids are chosen by.
Weigh = Callable[[Tensor], Tensor]

SAMPLED = FaultFamily(side=Side.ENGINE, point=Point.FORWARD, verdicts=Verdict.WRONG)


def _replaced(owner: Any, name: str, value: Any) -> SimpleNamespace:
    """Replace an attribute until the result is removed, as with a hook."""
    patch = mock.patch.object(owner, name, value)
    patch.start()
    return SimpleNamespace(remove=patch.stop)


@SAMPLED.fault("runner-up", cases=("multigen.read", "result.all"), doses=(0, 3))
def runner_up(model: nn.Module, now: Moment) -> list[Any]:
    """In one step the engine generates the second best id and goes on from it, so that logits and
    id disagree in that step alone.
    """
    steps = count()

    def weigh(logits: Tensor) -> Tensor:
        if next(steps) != int(now.dose):
            return logits
        return logits.scatter(-1, logits.argmax(dim=-1, keepdim=True), float("-inf"))

    return [_in_generate(model, weigh) if hasattr(model, "generate") else _in_sampler(weigh)]


# In bf16 a margin excuses a second that is nearly as large; its own step's logits do not.
SAMPLED.add(
    "runner-up-bf16",
    runner_up,
    "The same in bf16, where the second best may be near enough that noise excuses it.",
    cases="result.all",
    doses=0,
    precision=Precision.BF16,
)


def _in_generate(model: Any, weigh: Weigh) -> SimpleNamespace:
    """Patch transformers: add a logits processor after the model."""
    processors = model._get_logits_processor  # noqa: SLF001 - this is the seam

    def with_fault(*arguments: Any, **keywords: Any) -> Any:
        prepared = processors(*arguments, **keywords)
        prepared.append(lambda _, logits: weigh(logits))
        return prepared

    return _replaced(model, "_get_logits_processor", with_fault)


def _in_sampler(weigh: Weigh) -> SimpleNamespace:
    """Patch vLLM's greedy sampling, in the stage that samples."""
    # Imported by name: the parent also reads this module, and has no engine installed.
    sampler = importlib.import_module("vllm.v1.sample.sampler").Sampler
    largest = sampler.greedy_sample
    return _replaced(
        sampler, "greedy_sample", staticmethod(lambda logits: largest(weigh(logits).contiguous()))
    )
