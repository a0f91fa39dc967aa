"""Read and write the residual stream after one layer alike on every backend.

Engines return a layer's output in different forms: a tensor, a tensor with a batch axis, a tuple,
or two summands of the stream. A *layout* is one way to read such an output. The layout is measured,
never looked up: `settle` compares every reading of a probe prompt with the float32 reference.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

#: A reading is accepted up to this multiple of the baseline runs' error …
ACCEPT = 6.0
#: … which counts as at least one bf16 rounding: u₀ of docs/numerics.md#the-floor.
ROUNDING = 0.00166


class UnreadableLayerError(Exception):
    """A layer's output has another form than when its layout was determined."""


@dataclass(frozen=True)
class Layout:
    """How a layer's output holds the stream: `read` returns [tokens, width], `write` puts such a
    value back into an output of the same form.
    """

    name: str
    meaning: str
    fits: Callable[[Any], bool]
    read: Callable[[Any], Tensor]
    write: Callable[[Any, Tensor], Any]


def _is_tensor(output: Any, rank: int) -> bool:
    return isinstance(output, Tensor) and output.ndim == rank


def _begins_with_pair(output: Any, rank: int) -> bool:
    """Return whether the first two values may be the stream and a residual. Layers that share keys
    and values return more.
    """
    return (
        isinstance(output, (tuple, list))
        and len(output) >= 2
        and all(_is_tensor(part, rank) for part in output[:2])
        and output[0].shape == output[1].shape
    )


def _starts_with(output: Any, rank: int) -> bool:
    return isinstance(output, (tuple, list)) and bool(output) and _is_tensor(output[0], rank)


def _rest(output: Any, first: Tensor) -> Any:
    return (first, *output[1:])


LAYOUTS: Mapping[str, Layout] = {
    layout.name: layout
    for layout in (
        Layout(
            "single",
            "one tensor [tokens, width]",
            lambda output: _is_tensor(output, 2),
            lambda output: output,
            lambda _, value: value,
        ),
        Layout(
            "batched",
            "one tensor [1, tokens, width]",
            lambda output: _is_tensor(output, 3) and output.shape[0] == 1,
            lambda output: output[0],
            lambda _, value: value[None],
        ),
        Layout(
            "dual",
            "two summands (branch, residual), each [tokens, width]",
            lambda output: _begins_with_pair(output, 2),
            lambda output: output[0] + output[1],
            lambda output, value: (value, torch.zeros_like(output[1]), *output[2:]),
        ),
        Layout(
            "full_plus_stale",
            "(the whole stream, a stale residual), each [tokens, width]",
            lambda output: _begins_with_pair(output, 2),
            lambda output: output[0],
            _rest,
        ),
        Layout(
            "second",
            "(something else, the whole stream), each [tokens, width]",
            lambda output: _begins_with_pair(output, 2),
            lambda output: output[1],
            lambda output, value: (output[0], value, *output[2:]),
        ),
        Layout(
            "tuple",
            "a tuple that begins with [tokens, width]",
            lambda output: _starts_with(output, 2) and not _begins_with_pair(output, 2),
            lambda output: output[0],
            _rest,
        ),
        Layout(
            "tuple_batched",
            "a tuple that begins with [1, tokens, width]",
            lambda output: _starts_with(output, 3) and output[0].shape[0] == 1,
            lambda output: output[0][0],
            lambda output, value: _rest(output, value[None]),
        ),
    )
}


@dataclass(frozen=True)
class Settled:
    """The layout that matches; "" if none does, or if several do and differ.

    `tried` maps each reading that fits the form to its worst ratio, over layers, of its error to
    the accepted error.
    """

    layout: str
    tried: Mapping[str, float] = field(default_factory=dict)
    reason: str = ""


def distance(value: Tensor, reference: Tensor) -> float:
    """Return the median over tokens of the relative L2 distance, [tokens, width] each.

    The median and the rows' own norms keep one token's massive activation from dominating the
    result. For different shapes the distance is infinite.
    """
    if value.shape != reference.shape:
        return float("inf")
    difference = (value.float() - reference.float()).norm(dim=-1)
    scale = reference.float().norm(dim=-1).clamp_min(torch.finfo(torch.float32).tiny)
    return float((difference / scale).median())


def settle(
    outputs: Sequence[Any], reference: Sequence[Tensor], noise: Sequence[float], pinned: str = ""
) -> Settled:
    """Find the reading of these layer outputs that is the residual stream.

    `outputs` are one engine's raw layer outputs on the probe prompt, `reference` the float32
    streams [tokens, width], `noise` the bf16 error of each layer (`distance` of a baseline run).
    `pinned` accepts one layout only.
    """
    tried: dict[str, float] = {}
    for layout in LAYOUTS.values():
        if pinned and layout.name != pinned:
            continue
        if not all(layout.fits(output) for output in outputs):
            continue
        tried[layout.name] = max(
            distance(layout.read(output), target) / (ACCEPT * max(error, ROUNDING))
            for output, target, error in zip(outputs, reference, noise, strict=True)
        )
    holds = [name for name, ratio in tried.items() if ratio <= 1]
    shapes = describe(outputs[0]) if outputs else "no layer"
    if not holds:
        return Settled("", tried, f"no reading of a layer output {shapes} is the stream: {tried}")
    first, *others = ([LAYOUTS[name].read(output) for output in outputs] for name in holds)
    if all(all(map(torch.equal, first, other)) for other in others):
        return Settled(holds[0], tried)
    words = f"several readings of {shapes} agree with the reference and differ: {tried}"
    return Settled("", tried, words)


def describe(output: Any) -> str:
    """Describe the form of a layer's output: `(tensor[5, 64], tensor[5, 64])`."""
    if isinstance(output, Tensor):
        return f"tensor{list(output.shape)}"
    if isinstance(output, (tuple, list)):
        return f"({', '.join(describe(part) for part in output)})"
    return type(output).__name__


class StreamLayer:
    """One layer as a scenario sees it: `stream` is [tokens, width] of the block's prompt.

    Reading returns a copy, because vLLM overwrites its buffers. Writing replaces the stream in its
    present dtype and neutralises the layout's other parts. Instances are sent to the engine's
    processes with the block that uses them.
    """

    def __init__(self, envoy: Any, layout: str) -> None:
        self.envoy = envoy
        self.layout = layout

    @property
    def stream(self) -> Tensor:
        return self._read(self.envoy.output).clone()

    @stream.setter
    def stream(self, value: Tensor) -> None:
        output = self.envoy.output
        # vLLM's kernels assume that their input has the model's dtype.
        new = value.to(self._read(output).dtype)
        self.envoy.output = LAYOUTS[self.layout].write(output, new)

    def _read(self, output: Any) -> Tensor:
        layout = LAYOUTS[self.layout]
        try:
            return layout.read(output)
        except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
            if not isinstance(output, (Tensor, tuple, list)) or layout.fits(output):
                raise  # the value itself explains why it cannot be read
            words = f"the layer gave {describe(output)}, not {layout.meaning}"
            raise UnreadableLayerError(words) from error
