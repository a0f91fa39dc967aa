"""What the layers before an edit give, known from the run without edits: not computed again.

A layer computes from the stream before it alone, as a rule. Whether a model keeps to it is tried:
its own unedited run, begun in the middle, must end in the very bits of the whole one.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

#: What a layer gave: the stream, and how many more values, all None; none where it is no tuple.
Output = tuple[Tensor, int | None]


class Known:
    """Of one way to compute: by the prompt's ids, what every layer gave in the unedited prefill,
    of the last so many `prompts`. It is `usable` until something shows that it is not.
    """

    def __init__(self, prompts: int) -> None:
        self._prompts = prompts
        self._outputs: OrderedDict[tuple[int, ...], list[Output]] = OrderedDict()
        self.usable = True

    def note(self, ids: tuple[int, ...], layer: int, stream: Tensor, output: Any) -> None:
        """This layer gave this; layers come in order, and only those of the prefill count."""
        outputs = self._outputs.setdefault(ids, [])
        others = output[1:] if isinstance(output, tuple) else ()
        self.usable &= all(value is None for value in others)
        if len(outputs) == layer:
            outputs.append((stream, len(others) if isinstance(output, tuple) else None))
        while len(self._outputs) > self._prompts:
            self._outputs.popitem(last=False)

    def forwards(
        self, ids: tuple[int, ...], layers: Sequence[Module], count: int
    ) -> Mapping[Module, Callable[..., Any]]:
        """For the first `count` layers a forward that gives what they gave: none where any of
        it is not known.
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
        value = stream.clone()  # an edit, or the next layer, may write to it
        return value if more is None else (value, *[None] * more)

    return forward


def unchanged(
    edited: Collection[int],
    routed: Collection[int],
    places: Collection[tuple[str, int | None]],
    layers: int,
) -> int:
    """How many layers, from the first on, give what they give without changes: to the stream
    after the `edited` ones, within the `routed`, at `places`.
    """
    inside = [0 if layer is None else layer for _, layer in places]
    return min((*(layer + 1 for layer in edited), *routed, *inside), default=layers)


def same(run: Any, other: Any) -> bool:
    """Whether two runs are the same to the last bit."""
    streams = zip(run.stream, other.stream, strict=True)
    return all(map(torch.equal, run.logits, other.logits)) and all(
        step.keys() == other_step.keys()
        and all(torch.equal(step[at], other_step[at]) for at in step)
        for step, other_step in streams
    )
