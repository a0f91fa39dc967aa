"""All values that transformers computes for a prompt by itself.

A value read in the wrong place is nearly always another value of the same forward; in float32 its
numbers identify it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.structure import replace_tensor
from conformance.engines.tree import follow, hooked
from conformance.engines.user_trace.sequences import ENTRY, entering
from conformance.spec.records import Site

#: The most bytes kept for all prompts together.
BYTES = 192 << 20

#: The placeholder in a key for the sequence's number.
_SEQUENCE = "#"

#: What was seen of a trace, by site.
Sites = Mapping[Site, Tensor]

#: The relative distance of a stream's row from the clean run above which a write is assumed.
_WRITTEN = 1e-3


def everything(module: Any, path: str, seen: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the values of every sequence without writes: `clean|site` is the stream after each
    layer, `value|sequence/step|module|role` what each module takes and returns. Equal sequences are
    computed once, under the first one's number.

    For a sequence in which the trace wrote, also return the values of the edited run:
    `natural|site` is the stream as each layer returned it, `written|…` the modules'. Before the
    first layer and after each layer, the stream is replaced by the one the trace left, so that
    everything after it is what the trace's forward computed.

    Generated tokens are computed in the same forward. For their steps, only the direct children of
    a layer are kept.
    """
    found: dict[str, Tensor] = {}
    sites = {Site.parse(key): value for key, value in seen.items()}
    sequences = _tokens(sites)
    first: dict[str, int] = {}
    for sequence, steps in sequences.items():
        if first.setdefault(str(steps), sequence) == sequence:
            _add(found, _forward(module, path, steps), sequence)
    for sequence, steps in sequences.items():
        streams = _joined(sites, "stream", sequence, steps)
        if streams and _wrote(sites, found, sequence, first[str(steps)]):
            entry = _joined(sites, ENTRY, sequence, steps).get(None)
            _add(found, _forward(module, path, steps, streams, entry), sequence)
    return found


def _add(found: dict[str, Tensor], values: Mapping[str, Tensor], sequence: int) -> None:
    size = sum(value.numel() * value.element_size() for value in found.values())
    for key, value in values.items():
        size += value.numel() * value.element_size()
        if size < BYTES:
            found[key.replace(_SEQUENCE, str(sequence))] = value


def _joined(
    seen: Sites, name: str, sequence: int, steps: list[list[int]]
) -> dict[int | None, Tensor]:
    """Return what was seen under `name` in all steps of a sequence, by layer, [tokens, width]."""
    rows: dict[int | None, dict[int, Tensor]] = {}
    for site, value in seen.items():
        if (site.name, site.prompt) == (name, sequence):
            rows.setdefault(site.layer, {})[site.step] = value
    return {
        layer: torch.cat([by_step[step] for step in range(len(steps))])
        for layer, by_step in rows.items()
        if all(step in by_step and len(by_step[step]) == len(ids) for step, ids in enumerate(steps))
    }


def _wrote(seen: Sites, clean: Mapping[str, Tensor], sequence: int, alike: int) -> bool:
    """Return whether the trace changed the stream after a layer of this sequence. The clean stream
    was computed under the number `alike`.
    """
    for site, left in seen.items():
        if (site.name, site.prompt) != ("stream", sequence):
            continue
        rows = clean.get(f"clean|{replace(site, prompt=alike)}")
        if rows is None or rows.shape != left.shape:
            continue
        if bool(((left - rows).norm(dim=-1) > _WRITTEN * rows.norm(dim=-1)).any()):
            return True
    return False


def _tokens(seen: Sites) -> dict[int, list[list[int]]]:
    """Return the ids of each sequence by step, for the steps that were kept."""
    found: dict[int, dict[int, list[int]]] = {}
    for site, ids in seen.items():
        if site.name == "ids":
            found.setdefault(site.prompt, {})[site.step] = ids.tolist()
    return {
        sequence: [steps[step] for step in range(len(steps))]
        for sequence, steps in sorted(found.items())
        if sorted(steps) == list(range(len(steps)))
    }


@dataclass
class _Notes:
    """What hooks record in one forward over all tokens of a sequence; `parts` are each step's.
    `left` [tokens, width] replaces the stream after each of these layers, `entry` the stream before
    the first.
    """

    path: str
    parts: list[slice]
    layers: Mapping[Module, int]
    left: Mapping[int | None, Tensor] | None
    entry: Tensor | None
    found: dict[str, Tensor] = field(default_factory=dict)

    def by_step(self, value: Any) -> list[Tensor]:
        whole = _rows(value, self.parts[-1].stop)
        return [] if whole is None else [whole[part].clone() for part in self.parts]

    def module(self, name: str, role: str, value: Any) -> None:
        inside = name.removeprefix(f"{self.path}.").count(".") if name.startswith(self.path) else 0
        begin = "value" if self.left is None else "written"
        for step, rows in enumerate(self.by_step(value)):
            if not step or inside == 1:
                self.found[f"{begin}|{_SEQUENCE}/{step}|{name}|{role}"] = rows

    def stream(self, name: str, value: Any) -> None:
        begin = "clean" if self.left is None else "natural"
        for step, rows in enumerate(self.by_step(value)):
            self.found[f"{begin}|p{_SEQUENCE}/s{step}/{name}"] = rows

    def enter(self, _: Module, args: Any, kwargs: Mapping[str, Any]) -> Any:
        given = entering(args, kwargs, 3)
        self.stream(ENTRY, given)
        return _replaced((args, kwargs), given, self.entry)

    def after(self, name: str, child: Module, args: Any, kwargs: Any, output: Any) -> Any:
        self.module(name, "input", args or tuple(kwargs.values()))
        self.module(name, "output", output)
        if child in self.layers:
            self.stream(f"stream.{self.layers[child]}", output)
        stream = output[0] if isinstance(output, tuple) else output
        return _replaced(output, stream, (self.left or {}).get(self.layers.get(child, -1)))


def _forward(
    module: Any,
    path: str,
    steps: list[list[int]],
    left: Mapping[int | None, Tensor] | None = None,
    entry: Tensor | None = None,
) -> dict[str, Tensor]:
    """Return what one forward over all tokens computes. Keys hold a placeholder for the number."""
    ids = torch.tensor([id_ for step in steps for id_ in step])
    layers = {layer: index for index, layer in enumerate(follow(module, path))}
    ends = accumulate(map(len, steps))
    parts = [slice(end - len(step), end) for step, end in zip(steps, ends, strict=True)]
    notes = _Notes(path, parts, layers, left, entry)
    handles = [
        child.register_forward_hook(partial(notes.after, name), with_kwargs=True)
        for name, child in module.named_modules()
        if name
    ]
    handles.append(next(iter(layers)).register_forward_pre_hook(notes.enter, with_kwargs=True))
    with hooked(handles), torch.no_grad():
        output = module(input_ids=ids[None].to(module.device), use_cache=False)
    notes.module("", "logits", output.logits)
    return notes.found


def _rows(value: Any, count: int) -> Tensor | None:
    """Return [tokens, width] of a module's input or output for one prompt of `count` tokens."""
    value = value[0] if isinstance(value, (tuple, list)) and value else value
    fits = isinstance(value, Tensor) and value.ndim == 3 and value.shape[:2] == (1, count)
    return value[0].detach().cpu() if fits and value.is_floating_point() else None


def _replaced(held: Any, stream: Any, rows: Tensor | None) -> Any:
    """Return a layer's arguments or output with `rows` [tokens, width] as the stream, or None to
    keep them, also if the shapes differ.
    """
    if rows is None or not isinstance(stream, Tensor) or stream.shape != (1, *rows.shape):
        return None
    return replace_tensor(held, stream, rows[None].to(stream))
