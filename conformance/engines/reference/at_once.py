"""The steps of a generation with given tokens, computed in one forward.

This is how speculative decoding verifies draft tokens: the tokens follow the prompt, and each
token's rows are its step's result. It is as valid as one token at a time and as fast as a prefill.
Some definitions compute something else this way, such as rotary positions that depend on the total
length. Therefore each generation is first compared in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

#: The prompt's ids, the ids that follow, and the number of the reference's edited run (0: none).
Generation = tuple[tuple[int, ...], tuple[int, ...], int]

#: Changes a step's stream after a layer, given the step's streams so far by layer.
Edit = Callable[[Tensor, Mapping[int, Tensor]], Tensor]


class TestedGenerations:
    """Which generations' steps may be computed at once: those whose logits in a float32 baseline
    run were within the relative distance `allowed` of the reference's.
    """

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._agrees: dict[Generation, bool] = {}

    def may(self, generation: Generation, dtype: torch.dtype) -> bool:
        """Return whether a baseline run of this dtype may do so; an untested one may in float32."""
        return self._agrees.get(generation, dtype is torch.float32)

    def note(
        self, generation: Generation, logits: Sequence[Tensor], reference: Sequence[Tensor]
    ) -> bool:
        """Compare the logits [vocabulary] of every step; return whether they agree."""
        far = max(_relative(own, other) for own, other in zip(logits, reference, strict=True))
        self._agrees[generation] = far <= self._allowed
        return self._agrees[generation]


@contextmanager
def recorded(
    model: Any, layers: Sequence[Module], rows: Sequence[slice], edits: Mapping[int, Edit]
) -> Iterator[tuple[list[dict[int, Tensor]], list[Tensor]]]:
    """Collect the streams [tokens, width] after every layer and the logits [vocabulary], per step,
    for the first sequence of a batch in one forward. `rows` are each step's rows, the last of the
    input. `edits` change the stream after a layer, separately for each step.
    """
    streams: list[dict[int, Tensor]] = [{} for _ in rows]
    logits: list[Tensor] = []

    def layer_hook(index: int) -> Callable[..., Any]:
        edit = edits.get(index, _left)

        def hook(module: Any, args: Any, output: Any) -> Any:
            whole = output[0] if isinstance(output, tuple) else output
            for own, stream in zip(rows, streams, strict=True):
                stream[index] = edit(whole[0, own], stream).clone()
            if index not in edits:
                return None
            whole = whole.clone()
            for own, stream in zip(rows, streams, strict=True):
                whole[0, own] = stream[index].to(whole.dtype)
            return (whole, *output[1:]) if isinstance(output, tuple) else whole

        return hook

    def end(module: Any, args: Any, output: Any) -> None:
        logits.extend(row.clone() for row in output.logits[0, -len(rows) :])

    handles = [
        model.register_forward_hook(end),
        *(layer.register_forward_hook(layer_hook(at)) for at, layer in enumerate(layers)),
    ]
    try:
        yield streams, logits
    finally:
        for handle in handles:
            handle.remove()


def _left(stream: Tensor, _: Mapping[int, Tensor]) -> Tensor:
    """Return the stream unchanged."""
    return stream


def rows_of(prompt: int, steps: int, before: int = 0) -> list[slice]:
    """Return the rows of each step: all `prompt` tokens first, then one at a time, after `before`
    other rows.
    """
    ends = range(before + prompt, before + prompt + steps)
    return [slice(before if step == 0 else end - 1, end) for step, end in enumerate(ends)]


def _relative(value: Tensor, other: Tensor) -> float:
    return float((value - other).norm() / other.norm().clamp_min(1e-30))
