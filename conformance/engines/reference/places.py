"""Forward hooks by which the reference reads and writes at places of a model."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from conformance.engines import Refused
from conformance.engines.inside_attention import Inside
from conformance.engines.model_parts import Parts, arguments, floating
from conformance.engines.structure import replace_tensor
from conformance.engines.tree import follow, hooked, reaches

#: Takes the step and the rows at the place [tokens, width] (for LOGITS the last row, [vocabulary]);
#: returns the rows to continue with, or None to change nothing.
Visit = Callable[[int, Tensor], Tensor | None]
#: A part of the model, and its layer.
Place = tuple[str, int | None]
#: The values of a step by name: a tensor [tokens, width], or one for each layer.
Seen = dict[str, Any]

#: Name in a request → part of the model, or "" for a layer itself.
OUTPUTS = {name: name for name in ("embedding", "norm", "attention", "mlp", "router")}
INPUTS = {"input": "", "attention_input": "attention", "mlp_input": "mlp"}
#: Parts of each layer's attention, [tokens, heads, width].
WITHIN = ("query", "key", "value", "heads")
#: The probabilities that eager attention returns, [tokens, heads, tokens]: read, never written.
PATTERN = "pattern"
#: The model's final output.
LOGITS = "logits"


def keeping_visits(
    layers: Sequence[Module], parts: Parts, wanted: Collection[str], steps: list[Seen]
) -> dict[Place, Visit]:
    """Return visits that append to `steps` the values of the wanted parts in every forward."""

    def keep(name: str, layer: int | None, step: int, rows: Tensor) -> None:
        steps.extend({} for _ in range(step + 1 - len(steps)))
        if layer is None:
            steps[step][name] = rows.clone()
        else:
            steps[step].setdefault(name, {})[layer] = rows.clone()

    visits: dict[Place, Visit] = {}
    for name in wanted:
        path = _path(parts, name)
        having: list[int | None] = [at for at, layer in enumerate(layers) if reaches(layer, path)]
        for at in [None] if name in {"embedding", "norm"} else having:
            visits[name, at] = partial(keep, name, at)
    return visits


@contextmanager
def visited(
    model: Module, layers: Sequence[Module], parts: Parts, at: Mapping[Place, Visit], padding: int
) -> Iterator[None]:
    """Call each visit whenever a forward of the model passes its place, with the rows of the
    batch's first prompt. The `padding` rows before them are not its own.
    """
    step, prompts = -1, 1

    def begin(module: Module, args: Any, kwargs: Any) -> None:
        nonlocal step, prompts
        step += 1
        prompts = len(kwargs["input_ids"])

    def visit_rows(visit: Visit, value: Tensor) -> Tensor | None:
        batch = value.reshape(prompts, -1, value.shape[-1])  # a router has no batch axis
        own = without_padding(padding, batch[0])
        new = visit(step, own)
        if new is None or new is own:
            return None
        before = batch[0, : len(batch[0]) - len(own)]
        rows = torch.cat([before, new.to(batch.dtype)])
        return torch.cat([rows[None], batch[1:]]).reshape(value.shape)

    def visit_last(visit: Visit, value: Tensor) -> Tensor | None:
        return _with_last(value, visit(step, value[0, -1]))

    def visit_within(visit: Visit, place: Inside, value: Tensor) -> Tensor | None:
        own = partial(without_padding, padding)
        new = visit(step, place.read(value, own))
        return None if new is None else place.write(value, own, new)

    def visit_pattern(visit: Visit, rows: Tensor) -> None:
        visit(step, without_padding(padding, rows[..., padding:]))

    def watch(part: str, layer: int | None, visit: Visit) -> Any:
        root = model if layer is None else layers[layer]
        if part == PATTERN:
            return _hook_pattern(follow(root, parts.attention), partial(visit_pattern, visit))
        if part in WITHIN:
            seen = partial(visit_within, visit, parts.inside.places[part])
            return hook_within(parts, root, part, seen)
        path = "" if part in {LOGITS, "stream"} else _path(parts, part)
        visiting = partial(visit_last if part == LOGITS else visit_rows, visit)
        return _hook_tensor(follow(root, path), visiting, of_input=part in INPUTS)

    counting = model.register_forward_pre_hook(begin, with_kwargs=True)
    with hooked([counting, *(watch(*place, visit) for place, visit in at.items())]):
        yield


def returned_weights(output: Any) -> Tensor | None:
    """Return the probabilities [batch, heads, tokens, tokens] in an attention's output, if any."""
    weights = output[1] if isinstance(output, tuple) and len(output) > 1 else None
    return weights if isinstance(weights, Tensor) and weights.ndim == 4 else None


def _hook_pattern(attention: Module, seen: Callable[[Tensor], None]) -> Any:
    """Call `seen` with the probabilities [tokens, heads, tokens] of the first prompt."""

    def after(module: Module, args: Any, output: Any) -> None:
        if (weights := returned_weights(output)) is None:
            raise Refused("transformers' attention returns no probabilities")
        seen(weights[0].transpose(0, 1))

    return attention.register_forward_hook(after)


def hook_within(
    parts: Parts, layer: Module, name: str, seen: Callable[[Tensor], Tensor | None]
) -> Any:
    """Call `seen` with the tensor that holds this part of a layer's attention, and replace the
    tensor with the result unless it is None.
    """
    module = follow(layer, _path(parts, name))
    return _hook_tensor(module, seen, of_input=parts.inside.places[name].of_input)


def _with_last(value: Tensor, new: Tensor | None) -> Tensor | None:
    """Return logits [batch, tokens, vocabulary] with `new` for the first prompt's last token."""
    if new is None:
        return None
    changed = value.clone()
    changed[0, -1] = new.to(value.dtype)
    return changed


def without_padding(padding: int, rows: Tensor) -> Tensor:
    """Return a prompt's own rows; later steps have one row and no padding."""
    return rows[padding if len(rows) > 1 else 0 :]


def _path(parts: Parts, name: str) -> str:
    """Return the path of the module that takes or returns a part."""
    if name in WITHIN:
        return f"{parts.attention}.{parts.inside.places[name].path}"
    part = "attention" if name == PATTERN else OUTPUTS.get(name) or INPUTS[name]
    return str(getattr(parts, part)) if part else ""


def _hook_tensor(module: Module, seen: Callable[[Tensor], Tensor | None], *, of_input: bool) -> Any:
    """Call `seen` with the first floating-point tensor of the module's input or output, and replace
    it with the result unless it is None.
    """

    def exchanged(held: Any, old: Tensor) -> Any:
        new = seen(old)
        return None if new is None else replace_tensor(held, old, new)

    def before(module: Module, args: Any, kwargs: Any) -> Any:
        return exchanged((tuple(args), dict(kwargs)), arguments((args, kwargs))[0])

    def after(module: Module, args: Any, output: Any) -> Any:
        return exchanged(output, next(floating(output)))

    if of_input:
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)
