"""Reuse of the unedited run's layer outputs before the first edit, which need not be recomputed.

Normally a layer depends only on the stream before it. This is tested for each model: its unedited
run, started in the middle, must end in the same bits as the whole run.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

#: A layer's stream, and the number of other outputs, all None; None if the output is no tuple.
Output = tuple[Tensor, int | None]


class PrefillOutputs:
    """For one member: what every layer returned in the unedited prefill, by the prompt's ids, for
    the last `prompts` prompts. `usable` turns false once reuse proves wrong.
    """

    def __init__(self, prompts: int) -> None:
        self._prompts = prompts
        self._outputs: OrderedDict[tuple[int, ...], list[Output]] = OrderedDict()
        self.usable = True

    def note(self, ids: tuple[int, ...], layer: int, stream: Tensor, output: Any) -> None:
        """Record a layer's output; layers come in order, and only the prefill counts. `stream` is a
        copy of the first sequence's own rows, [tokens, width].
        """
        outputs = self._outputs.setdefault(ids, [])
        whole, *others = output if isinstance(output, tuple) else (output,)
        self.usable &= all(value is None for value in others)
        if len(outputs) == layer:
            alone = whole.shape[:2] == (1, len(stream))
            kept = stream[None] if alone else whole.clone()
            outputs.append((kept, len(others) if isinstance(output, tuple) else None))
        while len(self._outputs) > self._prompts:
            self._outputs.popitem(last=False)

    def forwards(
        self, ids: tuple[int, ...], layers: Sequence[Module], count: int
    ) -> Mapping[Module, Callable[..., Any]]:
        """Return, for the first `count` layers, forwards that replay their outputs; empty if any
        output is missing.
        """
        outputs = self._outputs.get(ids, [])
        if not self.usable or len(outputs) != len(layers):
            return {}
        self._outputs.move_to_end(ids)
        return {
            layer: _giving(*output) for layer, output in zip(layers[:count], outputs, strict=False)
        }


def _giving(stream: Tensor, more: int | None) -> Callable[..., Any]:
    def forward(*_: Any, **__: Any) -> Any:
        value = stream.clone()  # a copy: an edit or the next layer may write to it
        return value if more is None else (value, *[None] * more)

    return forward


def count_unchanged_layers(
    edited: Collection[int],
    routed: Collection[int],
    places: Collection[tuple[str, int | None]],
    layers: int,
) -> int:
    """Return how many layers, from the first, no edit affects: their outputs can be reused.

    Edits change the stream after the `edited` layers, the routers of the `routed` layers, and the
    `places` (name, layer) inside layers. A place without a layer precedes all layers.
    """
    inside = [0 if layer is None else layer for _, layer in places]
    return min((*(layer + 1 for layer in edited), *routed, *inside), default=layers)


def same(run: Any, other: Any) -> bool:
    """Return whether two runs are bitwise the same."""
    streams = zip(run.stream, other.stream, strict=True)
    return all(map(torch.equal, run.logits, other.logits)) and all(
        step.keys() == other_step.keys()
        and all(torch.equal(step[at], other_step[at]) for at in step)
        for step, other_step in streams
    )
