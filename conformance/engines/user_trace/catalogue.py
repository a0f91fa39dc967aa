"""Everything that transformers computes for a prompt by itself: what a value can be mistaken for.

A value read in the wrong place is nearly always another one of the same forward. In float32 it
is recognised by its numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
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

#: How far a row of a stream is from what it is without a write, of its length, where one wrote.
_WRITTEN = 1e-3


def everything(module: Any, path: str, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By `clean|site` the stream after each layer, and by `value|sequence/step|module|role` what
    each module is given and gives, of every sequence, with nothing written. Equal sequences are
    computed once, under the first one's number.

    Of sequences in which the trace wrote, the same of its own run: by `natural|site` the streams
    as each layer gave them, by `written|…` the modules. After each layer the stream goes on as
    the trace left it, so that all that follows is what the trace's forward computed.

    What was generated is computed along its own tokens, and of its modules only a layer's own
    branches are kept.
    """
    found: dict[str, Tensor] = {}
    sequences = _tokens(seen)
    first: dict[tuple[tuple[int, ...], ...], int] = {}
    for sequence, steps in sequences.items():
        if first.setdefault(_known_by(steps), sequence) == sequence:
            _add(found, _forward(module, path, steps), sequence)
    for sequence, steps in sequences.items():
        streams = _streams(seen, sequence, steps)
        if streams and _wrote(seen, found, sequence, first[_known_by(steps)]):
            _add(found, _forward(module, path, steps, streams), sequence)
    return found


def _known_by(steps: list[list[int]]) -> tuple[tuple[int, ...], ...]:
    return tuple(map(tuple, steps))


def _add(found: dict[str, Tensor], values: Mapping[str, Tensor], sequence: int) -> None:
    size = sum(value.numel() * value.element_size() for value in found.values())
    for key, value in values.items():
        size += value.numel() * value.element_size()
        if size < BYTES:
            found[key.replace(_SEQUENCE, str(sequence))] = value


def _streams(
    seen: Mapping[str, Tensor], sequence: int, steps: list[list[int]]
) -> dict[int, Tensor]:
    """What the trace left after each layer, [tokens of all steps, width]."""
    rows: dict[int, dict[int, Tensor]] = {}
    for name, value in seen.items():
        site = Site.parse(name)
        if (site.name, site.prompt) == ("stream", sequence) and site.layer is not None:
            rows.setdefault(site.layer, {})[site.step] = value
    return {
        layer: torch.cat([by_step[step] for step in range(len(steps))])
        for layer, by_step in rows.items()
        if all(step in by_step and len(by_step[step]) == len(ids) for step, ids in enumerate(steps))
    }


def _wrote(
    seen: Mapping[str, Tensor], clean: Mapping[str, Tensor], sequence: int, alike: int
) -> bool:
    """Did the trace leave another stream after a layer of this sequence than there is without
    its writes? `alike` is the number under which the latter was computed.
    """
    for name, left in seen.items():
        site = Site.parse(name)
        if (site.name, site.prompt) != ("stream", sequence):
            continue
        rows = clean.get(f"clean|{replace(site, prompt=alike)}")
        if rows is None or rows.shape != left.shape:
            continue
        if bool(((left - rows).norm(dim=-1) > _WRITTEN * rows.norm(dim=-1)).any()):
            return True
    return False


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


def _forward(
    module: Any,
    path: str,
    steps: list[list[int]],
    left: Mapping[int, Tensor] | None = None,
) -> dict[str, Tensor]:
    """One forward over all tokens. Keys have a place for the sequence's number. With `left` the
    stream goes on so after each of these layers, [tokens, width].
    """
    found: dict[str, Tensor] = {}
    modules, streams = ("value", "clean") if left is None else ("written", "natural")
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
                found[f"{modules}|{_SEQUENCE}/{step}|{name}|{role}"] = whole[part].clone()

    def hook(name: str, child: Module) -> Callable[..., None]:
        def after(_: Module, args: Any, kwargs: Any, output: Any) -> Any:
            note(name, "input", args or tuple(kwargs.values()))
            note(name, "output", output)
            stream = rows(output) if child in layers else None
            for step, part in enumerate(parts if stream is not None else ()):
                if stream is not None:
                    site = f"p{_SEQUENCE}/s{step}/stream.{layers[child]}"
                    found[f"{streams}|{site}"] = stream[part].clone()
            return _going_on(output, (left or {}).get(layers.get(child, -1)))

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


def _going_on(output: Any, stream: Tensor | None) -> Any:
    """A layer's output with this stream [tokens, width] in it; None to leave it."""
    if stream is None:
        return None
    if isinstance(output, tuple):
        return (stream[None].to(output[0]), *output[1:])
    return stream[None].to(output)
