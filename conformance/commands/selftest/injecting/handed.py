"""Faults in nnsight's mediator: what nnsight hands to a block, and what it takes from one.

`Mediator.value` gives a block a module's value, and `Mediator.swap` replaces it by the block's.
They run in the process that runs the block: transformers' own, or each stage of vLLM. So the engine
and the adapter work correctly, and only what passes between them is wrong.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from conformance.commands.selftest.fault import SKIPPED, Point, Raw
from conformance.commands.selftest.injecting import switch
from conformance.spec.residual_stream import LAYOUTS

#: Returns the rows of the block's own prompt; the rows before them are padding.
Own = Callable[[Tensor], Tensor]
#: nnsight's names for the id that a step generated: on vLLM, on transformers.
_CHOSEN = ("samples", "streamer.output")


def install(own: Own) -> None:
    """Install the points in nnsight's mediator, in this process and its later forks."""
    # Imported by name: the parent also reads this module, and has no engine installed.
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
    """Return a layer's output with the fault in its stream."""
    stream = LAYOUTS[switch.layout()].read(output)
    rows = own(stream).clone()
    changed = switch.passes(Point.SERVED, rows, layer, lambda: output)
    unchanged = changed is rows and torch.equal(rows, own(stream))
    return output if unchanged else _put(output, stream, changed, own)


def _put(output: Any, stream: Tensor, rows: Tensor, own: Own) -> Any:
    """Return a layer's output with these rows of the stream, and its padding unchanged."""
    padding = len(stream) - len(own(stream))
    padded = torch.cat([stream[:padding], rows]) if padding else rows
    if switch.layout() == "dual":  # both summands need as many rows
        return padded, torch.zeros_like(padded)
    return LAYOUTS[switch.layout()].write(output, padded)


def _logits(output: Any, location: str) -> Any:
    """Return a step's logits with the fault in the last row: vLLM's, or transformers' output."""
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
