"""Everything that transformers computes for a prompt by itself: what a value can be mistaken for.

A value read in the wrong place is nearly always another one of the same forward. In float32 it
is recognised by its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.tree import follow
from conformance.records import Site

#: Bytes kept of all prompts together.
BYTES = 192 << 20


def clean(module: Any, path: str, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By `clean|site` the stream after each layer, and by `value|sequence|module|role` what each
    module is given and gives, of every sequence's prompt, with nothing written.
    """
    found: dict[str, Tensor] = {}
    known: dict[tuple[int, ...], str] = {}
    size = 0
    for name, ids in seen.items():
        site = Site.parse(name)
        if site.name != "ids" or site.step or tuple(ids.tolist()) in known:
            continue
        known[tuple(ids.tolist())] = name
        for key, value in _forward(module, path, ids).items():
            size += value.numel() * value.element_size()
            if size < BYTES:
                found[key.format(site.prompt)] = value
    return found


def _forward(module: Any, path: str, ids: Tensor) -> dict[str, Tensor]:
    """Keys have a place for the sequence's number."""
    found: dict[str, Tensor] = {}
    count = len(ids)
    layers = {layer: index for index, layer in enumerate(follow(module, path))}

    def note(key: str, value: Any) -> None:
        value = value[0] if isinstance(value, (tuple, list)) and value else value
        rows = isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == (1, count)
        if rows and value.is_floating_point():
            found[key] = value[0].detach().to("cpu", copy=True)

    def hook(name: str, child: Module) -> Callable[..., None]:
        def after(_: Module, args: Any, kwargs: Any, output: Any) -> None:
            given = args or tuple(kwargs.values())
            note(f"value|{{}}|{name}|input", given)
            note(f"value|{{}}|{name}|output", output)
            if child in layers:
                note(f"clean|p{{}}/s0/stream.{layers[child]}", output)

        return after

    handles = [
        child.register_forward_hook(hook(name, child), with_kwargs=True)
        for name, child in module.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            output = module(input_ids=ids[None].to(module.device), use_cache=False)
        note("value|{}||logits", output.logits)
    finally:
        for handle in handles:
            handle.remove()
    return found
