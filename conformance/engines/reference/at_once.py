"""The steps of a generation, recorded from forwards of one step each or from a single forward.

A forward of given tokens computes all steps at once. This is how speculative decoding verifies
draft tokens: the tokens follow the prompt, and each token's rows are its step's result. It is as
valid as one token at a time and as fast as a prefill. Some definitions compute something else this
way, such as rotary positions that depend on the total length. Therefore each generation is first
compared in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.nn import Module

from conformance.engines.tree import hooked

#: Changes a step's stream after a layer, given the step's streams so far by layer.
Edit = Callable[[Tensor, Mapping[int, Tensor]], Tensor]


@contextmanager
def recorded_steps(
    model: Any,
    layers: Sequence[Module],
    rows_of_steps: Callable[[int], Sequence[slice]],
    edits: Mapping[int, Edit],
    streams: list[dict[int, Tensor]],
    logits: list[Tensor],
) -> Iterator[None]:
    """Append to `streams` the stream [tokens, width] after every layer and to `logits` the logits
    [vocabulary] of each step, for the first sequence of a batch.

    `rows_of_steps` gives the rows of each step in a forward with this many rows; the steps' logits
    are its last ones. `edits` change the stream after a layer, separately for each step.
    """
    steps: list[tuple[slice, dict[int, Tensor]]] = []

    def begin(module: Any, args: Any, kwargs: Any) -> None:
        steps[:] = [(rows, {}) for rows in rows_of_steps(kwargs["input_ids"].shape[1])]
        streams.extend(stream for _, stream in steps)

    def layer_hook(index: int) -> Callable[..., Any]:
        edit = edits.get(index)

        def hook(module: Any, args: Any, output: Any) -> Any:
            whole = output[0] if isinstance(output, tuple) else output
            for rows, stream in steps:
                own = whole[0, rows]
                stream[index] = (edit(own, stream) if edit else own).clone()
            if edit is None:
                return output
            whole = whole.clone()
            for rows, stream in steps:
                whole[0, rows] = stream[index].to(whole.dtype)
            return (whole, *output[1:]) if isinstance(output, tuple) else whole

        return hook

    def end(module: Any, args: Any, output: Any) -> None:
        logits.extend(row.clone() for row in output.logits[0, -len(steps) :])

    handles = [
        model.register_forward_pre_hook(begin, with_kwargs=True),
        model.register_forward_hook(end),
        *(layer.register_forward_hook(layer_hook(at)) for at, layer in enumerate(layers)),
    ]
    with hooked(handles):
        yield


def rows_of(prompt: int, steps: int, before: int = 0) -> list[slice]:
    """Return the rows of each step: all `prompt` tokens first, then one at a time, after `before`
    other rows.
    """
    ends = range(before + prompt, before + prompt + steps)
    return [slice(before if step == 0 else end - 1, end) for step, end in enumerate(ends)]


def relative(value: Tensor, reference: Tensor) -> float:
    """Return the distance of a value from the reference, relative to the reference's size."""
    return float((value - reference).norm() / reference.norm().clamp_min(1e-30))
