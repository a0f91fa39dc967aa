"""What nnsight hands to a block, and what it takes from one: faults in its mediator.

`Mediator.value` gives a block what a module gave, `Mediator.swap` puts a block's value in its
place, in whatever process runs the block: transformers' own, or each stage of vLLM. So the engine
computes as it should and the adapter reads as it should, and what passes between them is off.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.residual_stream import LAYOUTS
from conformance.selftest.fault import SKIPPED, Point, Raw
from conformance.selftest.injecting import switch

#: The rows of a block's own prompt among a layer's; what stands before them is padding.
Own = Callable[[Tensor], Tensor]
#: What nnsight calls the id that a step generated: on vLLM, on transformers.
_CHOSEN = ("samples", "streamer.output")


def install(own: Own) -> None:
    """Put the points into nnsight's mediator, in this process and in those forked from it."""
    # By name: the parent, which reads this module too, has no engine installed.
    mediator = importlib.import_module("nnsight.intervention.interleaver").Mediator
    value, swap = mediator.value.__func__, mediator.swap.__func__

    def handed_out(kind: Any, location: str) -> Any:
        output = value(kind, location)
        layer = switch.layer_of(location)
        if layer is not None and switch.acts(Point.SERVED):
            return _stream(output, layer, own)
        if layer is None and switch.acts(Point.LOGITS):
            return _logits(output, location)
        if switch.acts(Point.ARGUMENTS):
            called = switch.layer_of(location, "input")
            return output if called is None else switch.passes(Point.ARGUMENTS, output, called)
        if location.endswith(_CHOSEN) and switch.acts(Point.CHOSEN):
            return switch.passes(Point.CHOSEN, output)
        return output

    def taken_in(kind: Any, location: str, new: Any) -> None:
        layer = switch.written(location)
        if layer is None or not switch.acts(Point.TAKEN):
            swap(kind, location, new)
            return
        before = value(kind, location)
        stream = LAYOUTS[switch.layout()].read(new)
        changed = switch.passes(Point.TAKEN, own(stream).clone(), layer, lambda: before)
        if isinstance(changed, Raw):
            swap(kind, location, changed.output)
        elif changed is not SKIPPED:
            swap(kind, location, _put(new, stream, changed, own))

    mediator.value, mediator.swap = classmethod(handed_out), classmethod(taken_in)


def _stream(output: Any, layer: int, own: Own) -> Any:
    """What a layer gave, with the fault in the stream that it holds."""
    stream = LAYOUTS[switch.layout()].read(output)
    rows = own(stream).clone()
    changed = switch.passes(Point.SERVED, rows, layer, lambda: output)
    unchanged = changed is rows and torch.equal(rows, own(stream))
    return output if unchanged else _put(output, stream, changed, own)


def _put(output: Any, stream: Tensor, rows: Tensor, own: Own) -> Any:
    """A layer's output that holds these rows of the stream, and its padding as it was."""
    padding = len(stream) - len(own(stream))
    padded = torch.cat([stream[:padding], rows]) if padding else rows
    if switch.layout() == "dual":  # as many rows in both summands, whatever became of them
        return padded, torch.zeros_like(padded)
    return LAYOUTS[switch.layout()].write(output, padded)


def _logits(output: Any, location: str) -> Any:
    """A step's logits with the fault in the last row: vLLM's, or in what transformers returns."""
    logits = getattr(output, "logits", None)
    if isinstance(logits, Tensor):
        changed = copy.copy(output)
        changed.logits = _last_row(logits)
        return changed
    if isinstance(output, Tensor) and location.rpartition(".")[2] == "logits":
        return _last_row(output)
    return output


def _last_row(logits: Tensor) -> Tensor:
    rows = logits.clone()
    flat = rows.reshape(-1, rows.shape[-1])
    flat[-1] = switch.passes(Point.LOGITS, flat[-1].clone())
    return flat.reshape(rows.shape)
