"""Forward hooks that record the reference's parts other than the streams."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Module

from conformance.engines.inside_attention import Inside
from conformance.engines.model_parts import Parts, arguments, floating, reaches
from conformance.engines.structure import map_tensors
from conformance.engines.tree import follow

#: The values of a step by name: a tensor [tokens, width], or one for each layer.
Seen = dict[str, Any]

#: Name in a request → part of the model, or "" for a layer itself.
OUTPUTS = {name: name for name in ("embedding", "norm", "attention", "mlp", "router")}
#: Parts of each layer's attention, [tokens, heads, width].
WITHIN = ("query", "key", "value", "heads")
INPUTS = {"input": "", "attention_input": "attention", "mlp_input": "mlp"}


@contextmanager
def recorded(
    model: Module,
    layers: Sequence[Module],
    parts: Parts,
    wanted: Collection[str],
    steps: list[Seen],
    padding: int,
) -> Iterator[None]:
    """Append to `steps` the values of the wanted parts in every forward of the model.

    The first `padding` rows of a prompt are not its own.
    """
    prompts = [1]

    def begin(module: Module, args: Any, kwargs: Any) -> None:
        steps.append({})
        prompts[0] = len(kwargs["input_ids"])

    def keep(name: str, index: int | None, value: Tensor) -> None:
        value = value.reshape(prompts[0], -1, value.shape[-1])  # a router has no batch axis
        own = value[0, padding if value.shape[1] > 1 else 0 :].clone()
        if index is None:
            steps[-1][name] = own
        else:
            steps[-1].setdefault(name, {})[index] = own

    handles: list[Any] = [model.register_forward_pre_hook(begin, with_kwargs=True)]
    for name in filter(wanted.__contains__, WITHIN):
        handles += _within_layers(parts, layers, name, padding, steps)
    for name in wanted:
        if name in WITHIN:
            continue
        path = getattr(parts, OUTPUTS.get(name) or INPUTS[name], "")
        places: list[tuple[int | None, Module]] = (
            [(None, follow(model, path))]
            if name in {"embedding", "norm"}
            else [
                (index, follow(layer, path) if path else layer)
                for index, layer in enumerate(layers)
                if not path or reaches(layer, path)
            ]
        )
        for index, module in places:
            keep_part = partial(keep, name, index)
            if name in INPUTS:
                hook = module.register_forward_pre_hook(_before(keep_part), with_kwargs=True)
            else:
                hook = module.register_forward_hook(_after(keep_part))
            handles.append(hook)
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def _within_layers(
    parts: Parts, layers: Sequence[Module], name: str, padding: int, steps: list[Seen]
) -> Iterator[Any]:
    """Register hooks that keep this part of every layer's attention that has it."""
    place = within(parts, name)

    def keep(index: int, value: Tensor) -> None:
        rows = place.read(value, partial(without_padding, padding))
        steps[-1].setdefault(name, {})[index] = rows

    for index, layer in enumerate(layers):
        if reaches(layer, f"{parts.attention}.{place.path}"):
            yield hook_within(parts, layer, name, partial(keep, index))


def without_padding(padding: int, rows: Tensor) -> Tensor:
    """Return a prompt's own rows; later steps have one row and no padding."""
    return rows[padding if len(rows) > 1 else 0 :]


def within(parts: Parts, name: str) -> Inside:
    """Return the location of this part of the attention."""
    return parts.inside.places[name]


def hook_within(
    parts: Parts, layer: Module, name: str, seen: Callable[[Tensor], Tensor | None]
) -> Any:
    """Call `seen` with the tensor that holds this part of a layer's attention, and replace the
    tensor with the result unless it is None.
    """
    place = within(parts, name)
    module: Module = follow(follow(layer, parts.attention), place.path)

    def exchanged(held: Any, old: Tensor) -> Any:
        new = seen(old)
        return None if new is None else map_tensors(held, lambda one: new if one is old else one)

    def before(module: Module, args: Any, kwargs: Any) -> Any:
        return exchanged((tuple(args), dict(kwargs)), arguments((args, kwargs))[0])

    def after(module: Module, args: Any, output: Any) -> Any:
        return exchanged(output, next(floating(output)))

    if place.of_input:
        return module.register_forward_pre_hook(before, with_kwargs=True)
    return module.register_forward_hook(after)


def _before(keep: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, args, kwargs: keep(arguments((args, kwargs))[0])


def _after(keep: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, args, output: keep(next(floating(output)))
