"""Everything that transformers computes for a prompt by itself: what a value can be mistaken for.

A value read in the wrong place is nearly always another one of the same forward. In float32 it
is recognised by its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.tree import follow
from conformance.records import Site

#: Bytes kept of all prompts together.
BYTES = 192 << 20

#: Where a key has the sequence's number.
_SEQUENCE = "#"


def clean(module: Any, path: str, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By `clean|site` the stream after each layer, and by `value|sequence/step|module|role` what
    each module is given and gives, of every sequence, with nothing written.

    What was generated is computed along its own tokens, and of its modules only a layer's own
    branches are kept.
    """
    found: dict[str, Tensor] = {}
    known: set[tuple[tuple[int, ...], ...]] = set()
    size = 0
    for sequence, steps in _tokens(seen).items():
        if tuple(map(tuple, steps)) in known:
            continue
        known.add(tuple(map(tuple, steps)))
        for key, value in _forward(module, path, steps).items():
            size += value.numel() * value.element_size()
            if size < BYTES:
                found[key.replace(_SEQUENCE, str(sequence))] = value
    return found


def _tokens(seen: Mapping[str, Tensor]) -> dict[int, list[list[int]]]:
    """The ids of each sequence, step by step as far as they were kept."""
    found: dict[int, dict[int, list[int]]] = {}
    for name, ids in seen.items():
        site = Site.parse(name)
        if site.name == "ids":
            found.setdefault(site.prompt, {})[site.step] = ids.tolist()
    return {
        sequence: [steps[step] for step in range(len(steps))]
        for sequence, steps in sorted(found.items())
        if sorted(steps) == list(range(len(steps)))
    }


def _forward(module: Any, path: str, steps: list[list[int]]) -> dict[str, Tensor]:
    """Keys have a place for the sequence's number."""
    found: dict[str, Tensor] = {}
    ids = torch.tensor([id_ for step in steps for id_ in step])
    count = len(ids)
    ends = list(accumulate(map(len, steps)))
    parts = [slice(end - len(step), end) for step, end in zip(steps, ends, strict=True)]
    layers = {layer: index for index, layer in enumerate(follow(module, path))}

    def rows(value: Any) -> Tensor | None:
        value = value[0] if isinstance(value, (tuple, list)) and value else value
        fits = isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == (1, count)
        return value[0].detach().cpu() if fits and value.is_floating_point() else None

    def note(name: str, role: str, value: Any) -> None:
        inside = name.removeprefix(f"{path}.").count(".") if name.startswith(path) else 0
        whole = rows(value)
        for step, part in enumerate(parts if whole is not None else ()):
            if whole is not None and (not step or inside == 1):
                found[f"value|{_SEQUENCE}/{step}|{name}|{role}"] = whole[part].clone()

    def hook(name: str, child: Module) -> Callable[..., None]:
        def after(_: Module, args: Any, kwargs: Any, output: Any) -> None:
            note(name, "input", args or tuple(kwargs.values()))
            note(name, "output", output)
            stream = rows(output) if child in layers else None
            for step, part in enumerate(parts if stream is not None else ()):
                if stream is not None:
                    site = f"p{_SEQUENCE}/s{step}/stream.{layers[child]}"
                    found[f"clean|{site}"] = stream[part].clone()

        return after

    handles = [
        child.register_forward_hook(hook(name, child), with_kwargs=True)
        for name, child in module.named_modules()
        if name
    ]
    try:
        with torch.no_grad():
            output = module(input_ids=ids[None].to(module.device), use_cache=False)
        note("", "logits", output.logits)
    finally:
        for handle in handles:
            handle.remove()
    return found
