"""Faults in traces that use the model's own modules, as nnsight hands them out.

Swapping the two parts of an output is not a fault here: only their sum is read.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor

from conformance.records import Side, Verdict
from conformance.selftest.fault import VLLM, Fault, Moment, Point
from conformance.selftest.faults.arriving import undone
from conformance.selftest.faults.reads import half, tokens_shifted

WRONG = frozenset({Verdict.WRONG})
DUAL = ("llama", "gemma2")


def shifted_once(value: Any, now: Moment) -> Any:
    """Shift the rows of a layer's arguments by one token the first time they are read."""
    asked = now.memory.setdefault("asked", set())
    first = now.layer not in asked
    asked.add(now.layer)
    if not (first and now.acts_here):
        return value
    positional, named = value
    return tuple(map(_shifted, positional)), {key: _shifted(part) for key, part in named.items()}


def _shifted(part: Any) -> Any:
    """Shift an argument with rows of the width: [..., tokens, width]."""
    if not (isinstance(part, Tensor) and part.is_floating_point() and part.ndim in {2, 3}):
        return part
    return part.roll(1, dims=-2)


def _fault(name: str, act: Any, *cases: str, **more: Any) -> Fault:
    defaults: dict[str, Any] = {"side": Side.NNSIGHT, "point": Point.SERVED, "verdicts": WRONG}
    return Fault(id=name, act=act, cases=cases, **(defaults | more))


FAULTS = (
    _fault(
        "raw-half",
        half,
        "raw.read_sum",
        backends=VLLM,
        architectures=DUAL,
        places=("first", "middle", "last"),
        summary=(
            "A module's output holds one summand of the stream alone, in a trace that"
            " reads the modules themselves."
        ),
    ),
    _fault(
        "raw-rows",
        tokens_shifted,
        "raw.read_first",
        doses=(1,),
        places=("middle",),
        backends=("hf",),
        summary="The rows of a module's output are shifted by one token.",
    ),
    _fault(
        "raw-rows-sum",
        tokens_shifted,
        "raw.read_sum",
        doses=(1,),
        places=("middle",),
        backends=VLLM,
        architectures=DUAL,
        summary="The same where the stream is the sum of the two parts of an output.",
    ),
    _fault(
        "raw-input-rows",
        shifted_once,
        "raw.input",
        point=Point.ARGUMENTS,
        places=("middle", "last"),
        summary=(
            "A layer's `input` is handed out once with its rows shifted by one token,"
            " and right after."
        ),
    ),
    _fault(
        "raw-undone",
        undone,
        "raw.write_first",
        point=Point.FORWARD,
        places=("middle",),
        backends=("hf",),
        verdicts=frozenset({Verdict.DROPPED, Verdict.PARTIAL}),
        summary=(
            "A module's output is set to zero in place, and the next layer is given what was there."
        ),
    ),
    _fault(
        "raw-undone-sum",
        undone,
        "raw.write_sum",
        point=Point.FORWARD,
        places=("middle",),
        backends=VLLM,
        architectures=DUAL,
        verdicts=frozenset({Verdict.DROPPED, Verdict.PARTIAL}),
        summary=("As `raw-undone`, where the stream is the sum of the two parts of an output."),
    ),
)
