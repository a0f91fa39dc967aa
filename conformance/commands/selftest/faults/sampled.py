"""Faults of the engine's choice: it generates another id than that of the largest logit.

They act in transformers' `generate` loop and in vLLM's sampler, and the generation continues from
the other id. So the ids, the text and all later steps agree with each other; only the logits of
that one step differ.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from itertools import count
from types import SimpleNamespace
from typing import Any
from unittest import mock

from torch import Tensor, nn

from conformance.commands.selftest.fault import FaultFamily, Moment, Point
from conformance.spec.records import Precision, Side, Verdict

#: The logits of a step, one row per request → the logits that its ids are chosen by.
Weigh = Callable[[Tensor], Tensor]

SAMPLED = FaultFamily(side=Side.ENGINE, point=Point.FORWARD, verdicts=Verdict.WRONG)
FAMILIES = (SAMPLED,)


def _replaced(owner: Any, name: str, value: Any) -> SimpleNamespace:
    """Replace an attribute until the result is removed, as with a hook."""
    patch = mock.patch.object(owner, name, value)
    patch.start()
    return SimpleNamespace(remove=patch.stop)


def without_largest(logits: Tensor) -> Tensor:
    """Exclude each row's largest logit, so that the second largest is chosen."""
    return logits.scatter(-1, logits.argmax(dim=-1, keepdim=True), float("-inf"))


@SAMPLED.fault("runner-up", cases=("multigen.read", "result.all"), doses=(0, 3))
def runner_up(model: nn.Module, now: Moment) -> list[Any]:
    """In one step the engine generates the second best id and goes on from it, so that logits and
    id disagree in that step alone.
    """
    steps = count()

    def weigh(logits: Tensor) -> Tensor:
        return without_largest(logits) if next(steps) == int(now.dose) else logits

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
