"""The steps of a generation that is held to known tokens, computed in one forward.

As what verifies drafted tokens does (speculative decoding): the tokens stand behind the prompt, and
the rows of each are what its step gives. It is as honest a way as one token at a time, and as quick
as a prompt is. Not every definition computes the same thing so: rotary positions that depend on the
length of the whole do not. So it is tried on each generation, in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

#: The ids of a prompt, those that it goes on with, and which of the truth's edited runs it is
#: (0: none).
Generation = tuple[tuple[int, ...], tuple[int, ...], int]

#: Changes the stream of one step after a layer, given the streams of that step so far by layer.
Edit = Callable[[Tensor, Mapping[int, Tensor]], Tensor]


class Tried:
    """Of which generations the steps may be computed at once: a float32 way has, and its logits
    were no further from the truth's, relatively, than `allowed`.
    """

    def __init__(self, allowed: float) -> None:
        self._allowed = allowed
        self._agrees: dict[Generation, bool] = {}

    def may(self, generation: Generation, dtype: torch.dtype) -> bool:
        """Whether a way of this type may. One in float32 may try."""
        return self._agrees.get(generation, dtype is torch.float32)

    def note(
        self, generation: Generation, logits: Sequence[Tensor], truth: Sequence[Tensor]
    ) -> bool:
        """Compare the logits [vocabulary] of every step; says whether they agree."""
        far = max(_relative(own, other) for own, other in zip(logits, truth, strict=True))
        self._agrees[generation] = far <= self._allowed
        return self._agrees[generation]


@contextmanager
def recorded(
    model: Any, layers: Sequence[Module], rows: Sequence[slice], edits: Mapping[int, Edit]
) -> Iterator[tuple[list[dict[int, Tensor]], list[Tensor]]]:
    """The streams [tokens, width] after every layer and the logits [vocabulary], per step, of the
    first of a batch in one forward: `rows` are those of each step, the last ones of the input.
    `edits` change the stream after a layer, of each step by itself.
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
    """An edit that changes nothing."""
    return stream


def rows_of(prompt: int, steps: int, before: int = 0) -> list[slice]:
    """The rows of each step, of so many tokens of a prompt, with so many `before` them: all of the
    prompt's, then one at a time.
    """
    ends = range(before + prompt, before + prompt + steps)
    return [slice(before if step == 0 else end - 1, end) for step, end in enumerate(ends)]


def _relative(value: Tensor, other: Tensor) -> float:
    return float((value - other).norm() / other.norm().clamp_min(1e-30))
