"""Forward hooks by which the reference reads and writes at places."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines.inside_attention import Inside
from conformance.engines.model_parts import Parts, arguments, floating
from conformance.engines.reference.part_hooks import (
    INPUTS,
    OUTPUTS,
    WITHIN,
    hook_within,
    within,
    without_padding,
)
from conformance.engines.structure import map_tensors
from conformance.engines.tree import follow

#: Takes the step and the rows at the place [tokens, width] (for LOGITS the last row, [vocabulary]);
#: returns the rows to continue with.
Visit = Callable[[int, Tensor], Tensor]
#: The place of the model's final output.
LOGITS = "logits"
#: A part of the model, and its layer.
Place = tuple[str, int | None]


@contextmanager
def visited(
    model: Module,
    layers: Sequence[Module],
    parts: Parts,
    at: Mapping[Place, Visit],
    padding: int,
) -> Iterator[None]:
    """Call each visit whenever a forward of the model passes its place, with the rows of the
    batch's first prompt. The `padding` rows before them are not its own.
    """
    steps = [-1]
    prompts = [1]

    def begin(module: Module, args: Any, kwargs: Any) -> None:
        steps[0] += 1
        prompts[0] = len(kwargs["input_ids"])

    def observe(visit: Visit, value: Tensor) -> Tensor:
        """Return the value to continue with; the same object if nothing was written."""
        batch = value.reshape(prompts[0], -1, value.shape[-1])
        first = padding if batch.shape[1] > 1 else 0
        own = batch[0, first:]
        new = visit(steps[0], own)
        if new is own:
            return value
        rows = torch.cat([batch[0, :first], new.to(batch.dtype)])
        return torch.cat([rows[None], batch[1:]]).reshape(value.shape)

    def last(visit: Visit, value: Tensor) -> Tensor:
        own = value[0, -1]
        new = visit(steps[0], own)
        if new is own:
            return value
        changed = value.clone()
        changed[0, -1] = new.to(value.dtype)
        return changed

    def watch(part: str, layer: int | None, visit: Visit) -> Any:
        if part in WITHIN and layer is not None:
            visiting = partial(_observe_within, visit, within(parts, part), steps, padding)
            return hook_within(parts, layers[layer], part, visiting)
        module = _module(model, layers, parts, part, layer)
        if part in INPUTS:
            return module.register_forward_pre_hook(_before(visit, observe), with_kwargs=True)
        return module.register_forward_hook(_after(visit, last if part == LOGITS else observe))

    handles: list[Any] = [model.register_forward_pre_hook(begin, with_kwargs=True)]
    handles += [watch(*place, visit) for place, visit in at.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _observe_within(
    visit: Visit, place: Inside, steps: Sequence[int], padding: int, value: Tensor
) -> Tensor:
    own = partial(without_padding, padding)
    return place.write(value, own, visit(steps[0], place.read(value, own)))


def _module(
    model: Module, layers: Sequence[Module], parts: Parts, part: str, layer: int | None
) -> Module:
    path = getattr(parts, OUTPUTS.get(part) or INPUTS.get(part, ""), "")
    root = model if layer is None else layers[layer]
    module: Module = follow(root, path) if path else root
    return module


def _before(visit: Visit, observe: Callable[[Visit, Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: Module, args: Any, kwargs: Any) -> Any:
        value = arguments((args, kwargs))[0]
        new = observe(visit, value)
        return _exchanged((tuple(args), dict(kwargs)), value, new)

    return hook


def _after(visit: Visit, observe: Callable[[Visit, Tensor], Tensor]) -> Callable[..., Any]:
    def hook(module: Module, args: Any, output: Any) -> Any:
        value = next(floating(output))
        return _exchanged(output, value, observe(visit, value))

    return hook


def _exchanged(value: Any, old: Tensor, new: Tensor) -> Any:
    """Return the value with the tensor `old` replaced by `new`."""
    if new is old:
        return value
    return map_tensors(value, lambda tensor: new if tensor is old else tensor)
