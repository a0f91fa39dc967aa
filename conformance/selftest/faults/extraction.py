"""Faults of the hidden states that an engine itself returns, and of reads next to them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from conformance.records import Side, Verdict
from conformance.selftest.fault import Fault, Moment, Point
from conformance.selftest.faults.reads import previous_layer

WRONG = frozenset({Verdict.WRONG})


def layer_before(model: nn.Module, now: Moment) -> list[Any]:
    """Make the engine return the state after the previous layer, where it is computed."""
    assert now.at is not None  # noqa: S101 - every variant of this names a layer
    at = now.at

    def hook(_: Any, args: Any, output: Any) -> Any:
        states = getattr(output, "hidden_states", None)
        if states is not None:
            place = at + 1  # the first state is the input of the first layer
            output.hidden_states = (*states[:place], states[place - 1], *states[place + 1 :])
        elif isinstance(output, tuple) and isinstance(output[1], list):
            output[1][at] = output[1][at - 1]
        return output

    return [model.register_forward_hook(hook)]


def fewer_rows(value: Tensor, now: Moment) -> Tensor:
    """Drop the last tokens' rows."""
    return value[: -int(now.dose)] if now.acts_here else value


def last_bit(value: Tensor, now: Moment) -> Tensor:
    """Flip the last bit of one number: far below the noise."""
    if now.acts_here:
        value.view(torch.int16).view(-1)[0] ^= 1
    return value


def _fault(name: str, act: Any, **more: Any) -> Fault:
    defaults: dict[str, Any] = {
        "cases": ("extract.alone",),
        "verdicts": WRONG,
        "places": ("middle",),
        "backends": ("hf", "vllm-pp1"),  # vLLM refuses several stages
        "alone": True,
    }
    return Fault(id=name, act=act, **(defaults | more))


FAULTS = (
    _fault(
        "hidden-extract",
        fewer_rows,
        point=Point.EXTRACTED,
        side=Side.ENGINE,
        verdicts=frozenset({Verdict.STRUCTURE}),
        doses=(1,),
        summary="The hidden states that the engine hands out by itself lack the last row.",
        met="vLLM's extract_hidden_states under chunked prefill",
    ),
    _fault(
        "extract-off",
        layer_before,
        point=Point.FORWARD,
        side=Side.ENGINE,
        says=("previous layer",),
        summary="The engine hands out the state after the layer before.",
    ),
    _fault(
        "read-beside",
        previous_layer,
        point=Point.SERVED,
        side=Side.NNSIGHT,
        says=("previous layer",),
        summary=("A block reads the layer before, while the engine hands out the right one."),
    ),
    _fault(
        "read-bit",
        last_bit,
        point=Point.SERVED,
        side=Side.UNDECIDED,  # nobody could tell which of the two values is wrong
        summary=(
            "The last bit of one number differs between a read and what the engine hands out."
        ),
    ),
)
