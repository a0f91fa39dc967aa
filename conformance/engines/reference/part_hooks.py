"""What the reference sees of a model's parts besides the streams: plain forward hooks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor
from torch.nn import Module

from conformance.engines.model_parts import Parts, arguments, floating, reaches
from conformance.engines.tree import follow

#: What a step gave by name: a tensor [tokens, width], or one for each layer.
Seen = dict[str, Any]

#: What can be asked for → which part of the model, or "" for a layer itself.
OUTPUTS = {name: name for name in ("embedding", "norm", "attention", "mlp", "router")}
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
    """Append to `steps` what every forward of the model holds of the wanted parts.

    `padding` rows in front of a prompt are not its own.
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
    for name in wanted:
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


def _before(keep: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, args, kwargs: keep(arguments((args, kwargs))[0])


def _after(keep: Callable[[Tensor], None]) -> Callable[..., None]:
    return lambda module, args, output: keep(next(floating(output)))
