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
from conformance.selftest import switch
from conformance.selftest.fault import SKIPPED, Point, Raw

#: The rows of a block's own prompt among a layer's; what stands before them is padding.
Own = Callable[[Tensor], Tensor]
#: What nnsight calls the id that a step generated: on vLLM, on transformers.
_CHOSEN = ("samples", "streamer.output")


def install(own: Own) -> None:
    """Put the points into nnsight's mediator, in this process and in those forked from it."""
    # By name: the parent, which reads this module too, has no engine installed.
    mediator = importlib.import_module("nnsight.intervention.interleaver").Mediator
    value, swap = mediator.value.__func__, mediator.swap.__func__

    def handed(kind: Any, location: str) -> Any:
        given = value(kind, location)
        layer = switch.layer_of(location)
        if layer is not None and switch.acts(Point.SERVED):
            return _stream(given, layer, own)
        if layer is None and switch.acts(Point.LOGITS):
            return _logits(given, location)
        if location.endswith(_CHOSEN) and switch.acts(Point.CHOSEN):
            return switch.passes(Point.CHOSEN, given)
        return given

    def taken(kind: Any, location: str, new: Any) -> None:
        layer = switch.layer_of(location)
        if layer is None or not switch.acts(Point.TAKEN):
            swap(kind, location, new)
            return
        before = value(kind, location)
        read = LAYOUTS[switch.layout()].read(new)
        changed = switch.passes(Point.TAKEN, own(read).clone(), layer, lambda: before)
        if isinstance(changed, Raw):
            swap(kind, location, changed.output)
        elif changed is not SKIPPED:
            swap(kind, location, _put(new, read, changed, own))

    mediator.value, mediator.swap = classmethod(handed), classmethod(taken)


def _stream(given: Any, layer: int, own: Own) -> Any:
    """What a layer gave, with the fault in the stream that it holds."""
    read = LAYOUTS[switch.layout()].read(given)
    mine = own(read).clone()
    changed = switch.passes(Point.SERVED, mine, layer, lambda: given)
    same = changed is mine and torch.equal(mine, own(read))
    return given if same else _put(given, read, changed, own)


def _put(given: Any, read: Tensor, rows: Tensor, own: Own) -> Any:
    """A layer's output that holds these rows of the stream, and its padding as it was."""
    padding = len(read) - len(own(read))
    whole = torch.cat([read[:padding], rows]) if padding else rows
    if switch.layout() == "dual":  # as many rows in both summands, whatever became of them
        return whole, torch.zeros_like(whole)
    return LAYOUTS[switch.layout()].write(given, whole)


def _logits(given: Any, location: str) -> Any:
    """A step's logits with the fault in the last row: vLLM's, or in what transformers returns."""
    held = getattr(given, "logits", None)
    if isinstance(held, Tensor):
        changed = copy.copy(given)
        changed.logits = _last_row(held)
        return changed
    if isinstance(given, Tensor) and location.rpartition(".")[2] == "logits":
        return _last_row(given)
    return given


def _last_row(logits: Tensor) -> Tensor:
    rows = logits.clone()
    flat = rows.reshape(-1, rows.shape[-1])
    flat[-1] = switch.passes(Point.LOGITS, flat[-1].clone())
    return flat.reshape(rows.shape)
