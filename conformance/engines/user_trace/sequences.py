"""What an engine's layers computed while a user's trace ran, sequence by sequence.

Plain torch hooks see it after all that the trace wrote. A sequence is one prompt with what
was generated after it; its steps are forwards. Both engines name them alike, so that the first
layer in which they part can be found: `ids`, and `stream` after each layer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from safetensors.torch import load as from_bytes
from safetensors.torch import save as to_bytes
from torch import Tensor
from torch.nn import Module

from conformance.engines.tree import follow
from conformance.engines.vllm.worker_rpc import identity
from conformance.records import Site
from conformance.residual_stream import LAYOUTS

#: Steps of a sequence that are kept, and bytes of one engine altogether.
STEPS = 16
BYTES = 256 << 20

#: Rows of the running forward: which sequence and step each slice belongs to.
Rows = list[tuple[int, int, slice]]


@dataclass
class Seen:
    """Values by site; `prompt` is the sequence's number, in the order in which they began."""

    values: dict[str, Tensor] = field(default_factory=dict)
    rows: Rows = field(default_factory=list)
    size: int = 0

    def note(self, name: str, rows: Tensor, layer: int | None = None) -> None:
        """Keep these rows [all tokens of the forward, …] apart by sequence."""
        for sequence, step, part in self.rows:
            value = rows[part].detach()
            self.size += value.numel() * value.element_size()
            if step < STEPS and self.size < BYTES:
                site = Site(name, prompt=sequence, step=step, layer=layer)
                self.values[str(site)] = value.to("cpu", copy=True).contiguous()


@contextmanager
def on_transformers(module: Module, layers: Mapping[int, Module]) -> Iterator[Seen]:
    """Every sequence that transformers computes in the block."""
    seen = Seen()
    begun = 0
    steps = 0
    keep: list[Tensor] = []

    def before(_: Module, args: Any, kwargs: Mapping[str, Any]) -> None:
        nonlocal begun, steps
        ids = kwargs.get("input_ids", args[0] if args else None)
        seen.rows, keep[:] = [], []
        if not isinstance(ids, Tensor) or ids.ndim != 2:
            return
        count, width = ids.shape
        past = kwargs.get("past_key_values")
        if past is None or not past.get_seq_length():
            begun, steps = begun + count, 0
        else:
            steps += 1
        mask = kwargs.get("attention_mask")
        own = torch.ones_like(ids) if mask is None or mask.ndim != 2 else mask[:, -width:]
        keep.append(own.flatten().bool())
        start = 0
        for row in range(count):
            end = start + int(own[row].sum())
            seen.rows.append((begun - count + row, steps, slice(start, end)))
            start = end
        seen.note("ids", ids.flatten()[keep[0]])

    def after(index: int) -> Callable[..., None]:
        def hook(_: Module, args: Any, output: Any) -> None:
            value = output[0] if isinstance(output, (tuple, list)) else output
            if keep and isinstance(value, Tensor) and value.ndim == 3:
                flat = value.flatten(0, 1)
                if len(flat) == len(keep[0]):
                    seen.note("stream", flat[keep[0]], index)

        return hook

    handles = [module.register_forward_pre_hook(before, with_kwargs=True)]
    handles += [layer.register_forward_hook(after(index)) for index, layer in layers.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()


def begin_on_vllm(worker: Any, path: str, layout: str) -> None:
    """In a worker of vLLM: note what its layers compute from now on."""
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

    def after(index: int) -> Callable[..., None]:
        def hook(_: Module, args: Any, output: Any) -> None:
            # What a write has left unreadable is left out here, and found elsewhere.
            with suppress(Exception):
                seen.note("stream", LAYOUTS[layout].read(output), index)

        return hook

    handles = [model.register_forward_pre_hook(before, with_kwargs=True)]
    every = follow(model, path)
    first, last = identity(worker)["layers"]
    handles += [every[index].register_forward_hook(after(index)) for index in range(first, last)]
    worker.sequences_seen = (seen, handles)


def end_on_vllm(worker: Any) -> bytes:
    """What was seen since, packed. The hooks are gone."""
    seen, handles = worker.sequences_seen
    for handle in handles:
        handle.remove()
    return to_bytes(seen.values)


def unpacked(answers: list[bytes]) -> dict[str, Tensor]:
    """What all processes of an engine saw."""
    found: dict[str, Tensor] = {}
    for answer in answers:
        found |= from_bytes(answer)
    return found
