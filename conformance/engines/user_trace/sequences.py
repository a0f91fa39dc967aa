"""What an engine's layers compute while a user's trace runs, by sequence.

Plain torch hooks observe it after everything that the trace writes. A sequence is one prompt with
the tokens generated after it; its steps are forwards. Both engines use the same names, so that the
first layer whose output differs can be found: `ids`, `entry` (what the first layer takes) and
`stream` after each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.nn import Module

from conformance.engines.tree import follow, hooked
from conformance.engines.vllm.inside.worker_rpc import identity
from conformance.spec.records import Site
from conformance.spec.residual_stream import LAYOUTS

#: The most steps kept of a sequence, and bytes kept of one engine.
STEPS = 16
BYTES = 256 << 20

#: The site of what the first layer takes: the embeddings, as the trace left them.
ENTRY = "entry"

#: The slices of the running forward's rows, with the sequence and step of each.
Rows = list[tuple[int, int, slice]]


@dataclass
class Seen:
    """Values by site; `prompt` is the sequence's number, in order of first appearance."""

    values: dict[str, Tensor] = field(default_factory=dict)
    rows: Rows = field(default_factory=list)
    size: int = 0

    def note(self, name: str, rows: Tensor, layer: int | None = None) -> None:
        """Keep these rows [all tokens of the forward, …], split by sequence."""
        for sequence, step, part in self.rows:
            value = rows[part].detach()
            self.size += value.numel() * value.element_size()
            if step < STEPS and self.size < BYTES:
                site = Site(name, prompt=sequence, step=step, layer=layer)
                self.values[str(site)] = value.to("cpu", copy=True).contiguous()


def entering(args: Any, kwargs: Mapping[str, Any], ndim: int) -> Tensor | None:
    """Return the residual stream in a first layer's arguments: the first floating-point tensor with
    `ndim` axes.
    """
    every = (one for one in (*args, *kwargs.values()) if isinstance(one, Tensor))
    return next((one for one in every if one.is_floating_point() and one.ndim == ndim), None)


@dataclass
class _Batches:
    """What hooks record of transformers' forwards, each a batch of padded rows."""

    seen: Seen = field(default_factory=Seen)
    begun: int = 0
    steps: int = 0
    #: Which rows of the running forward are tokens of a prompt; None if it has no ids.
    own: Tensor | None = None

    def begin(self, _: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        self.seen.rows, self.own = [], None
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            return
        count, width = ids.shape
        past = kwargs.get("past_key_values")
        if past is None or not past.get_seq_length():
            self.begun, self.steps = self.begun + count, 0
        else:
            self.steps += 1
        mask = kwargs.get("attention_mask")
        own = torch.ones_like(ids) if mask is None or mask.ndim != 2 else mask[:, -width:]
        self.own = own.flatten().bool()
        start = 0
        for row in range(count):
            end = start + int(own[row].sum())
            self.seen.rows.append((self.begun - count + row, self.steps, slice(start, end)))
            start = end
        self.seen.note("ids", ids.flatten()[self.own])

    def note(self, name: str, value: Any, layer: int | None = None) -> None:
        if self.own is not None and isinstance(value, Tensor) and value.ndim == 3:
            flat = value.flatten(0, 1)
            if len(flat) == len(self.own):
                self.seen.note(name, flat[self.own], layer)

    def enter(self, _: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        self.note(ENTRY, entering(args, kwargs, 3))

    def after(self, layer: int, _: Module, args: Any, output: Any) -> None:
        self.note("stream", output[0] if isinstance(output, (tuple, list)) else output, layer)


@contextmanager
def on_transformers(module: Module, layers: Mapping[int, Module]) -> Iterator[Seen]:
    """Record every sequence that transformers computes inside the with block."""
    batches = _Batches()
    handles = [module.register_forward_pre_hook(batches.begin, with_kwargs=True)]
    for index, layer in layers.items():
        if not index:
            handles.append(layer.register_forward_pre_hook(batches.enter, with_kwargs=True))
        handles.append(layer.register_forward_hook(partial(batches.after, index)))
    with hooked(handles):
        yield batches.seen


def begin_on_vllm(worker: Any, path: str, layout: str) -> None:
    """Record what the layers of a vLLM worker compute from now on."""
    runner = worker.model_runner
    model = runner.get_model()
    seen = Seen()
    numbers: dict[str, int] = {}
    steps: dict[str, int] = {}

    def before(_: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        seen.rows = []
        requests = list(runner.input_batch.req_ids)
        starts = runner.query_start_loc.np
        for index, request in enumerate(requests):
            number = numbers.setdefault(request, len(numbers))
            step = steps[request] = steps.get(request, -1) + 1
            seen.rows.append((number, step, slice(int(starts[index]), int(starts[index + 1]))))
        ids = kwargs.get("input_ids")
        if isinstance(ids, Tensor):
            seen.note("ids", ids)

    def enter(_: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        value = entering(args, kwargs, 2)
        if value is not None:
            seen.note(ENTRY, value)

    def after(index: int) -> Callable[..., None]:
        def hook(_: Module, args: Any, output: Any) -> None:
            # A stream that a write made unreadable is skipped here and found elsewhere.
            with suppress(Exception):
                seen.note("stream", LAYOUTS[layout].read(output), index)

        return hook

    handles = [model.register_forward_pre_hook(before, with_kwargs=True)]
    every = follow(model, path)
    first, last = identity(worker)["layers"]
    if first == 0 < last:
        handles.append(every[0].register_forward_pre_hook(enter, with_kwargs=True))
    handles += [every[index].register_forward_hook(after(index)) for index in range(first, last)]
    worker.sequences_seen = (seen, handles)


def end_on_vllm(worker: Any) -> bytes:
    """Remove the hooks and return what they recorded, packed."""
    seen, handles = worker.sequences_seen
    for handle in handles:
        handle.remove()
    return to_bytes(seen.values)


def unpacked(answers: list[bytes]) -> dict[str, Tensor]:
    """Return what all processes of an engine recorded."""
    return {site: rows for answer in answers for site, rows in from_bytes(answer).items()}
