"""Faults of lost edits: in the engine's forward, after the layer that was written.

The clean run comes first, and its values are kept. In the edited run they replace the values that
should show the edit: the value read back is right, and what follows is as without the edit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from conformance.commands.selftest.fault import VLLM, FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.model import attention, final_norm, layer_of
from conformance.spec.records import Side, Verdict

#: A forward with more rows begins a run: prompts are longer, and few requests decode at once.
_DECODING = 4
_LOST = (Verdict.DROPPED, Verdict.PARTIAL)
_HALF = (*_LOST, Verdict.MISSCALED, Verdict.WRONG, Verdict.CONTAMINATED)

FORWARD = FaultFamily(side=Side.NNSIGHT, point=Point.FORWARD, verdicts=_LOST, places="middle")
FAMILIES = (FORWARD,)


@dataclass
class _CleanValues:
    """A module's inputs or outputs in the clean run, by forward."""

    in_forward: Callable[[int], bool]
    runs: int = -1
    forward: int = 0
    clean: dict[int, list[Tensor]] = field(default_factory=dict)

    def instead(self, values: list[Tensor]) -> list[Tensor] | None:
        """Return the clean run's values in the edited run; None to change nothing."""
        self.forward += 1
        if values[0].numel() // values[0].shape[-1] > _DECODING:
            self.runs, self.forward = self.runs + 1, 0
        if self.runs == 0:
            self.clean[self.forward] = [value.clone() for value in values]
        clean = self.clean.get(self.forward)
        if self.runs != 1 or clean is None or not self.in_forward(self.forward):
            return None
        alike = all(new.shape == old.shape for new, old in zip(values, clean, strict=True))
        return [value.clone() for value in clean] if alike else None


def _streams(values: Any) -> Iterator[Tensor]:
    """Yield the arguments that hold the stream: one float tensor, or two of the same shape."""
    numbers = [
        argument
        for argument in values
        if isinstance(argument, Tensor) and argument.is_floating_point()
    ]
    return (argument for argument in numbers if argument.shape == numbers[0].shape)


def _give_clean_input(module: nn.Module, in_forward: Callable[[int], bool]) -> Any:
    """Give the module its input of the clean run."""
    clean_values = _CleanValues(in_forward)

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        streams = list(_streams([*args, *kwargs.values()]))
        instead = clean_values.instead(streams) if streams else None
        if instead is None:
            return None
        clean_of = {id(old): new for old, new in zip(streams, instead, strict=True)}
        keywords = {key: clean_of.get(id(value), value) for key, value in kwargs.items()}
        return tuple(clean_of.get(id(value), value) for value in args), keywords

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _give_clean_output(module: nn.Module, in_forward: Callable[[int], bool]) -> Any:
    """Replace the module's output by that of the clean run."""
    clean_values = _CleanValues(in_forward)

    def hook(_: Any, args: Any, output: Any) -> Any:
        several = isinstance(output, tuple)
        streams = list(_streams(output if several else [output]))
        instead = clean_values.instead(streams) if streams else None
        if instead is None:
            return None
        if not several:
            return instead[0]
        clean_of = {id(old): new for old, new in zip(streams, instead, strict=True)}
        return tuple(clean_of.get(id(value), value) for value in output)

    return module.register_forward_hook(hook)


@FORWARD.fault(
    "edit-undone",
    cases=("steering.middle-small-one", "steering.middle-large-all", "ablation.middle"),
    quick=True,
)
def undone(model: nn.Module, now: Moment) -> list[Any]:
    """The layer after the one that was written is given what was there before."""
    after = _after(model, now)
    return [_give_clean_input(after, lambda _: True)] if after is not None else []


FORWARD.add(
    "edit-undone-last",
    undone,
    "The final norm is given what was there before the last layer was written.",
    cases="steering.last-small-one",
    places="last",
)
FORWARD.add(
    "raw-undone",
    undone,
    "A module's output is set to zero in place, and the next layer is given what was there.",
    cases="raw.write_first",
    backends="hf",
)
FORWARD.add(
    "raw-undone-sum",
    undone,
    "As `raw-undone`, where the stream is the sum of the two parts of an output.",
    cases="raw.write_sum",
    backends=VLLM,
    architectures=("llama", "gemma2"),
)


@FORWARD.fault("edit-fades", cases=("steering.middle-small-one", "ablation.middle"))
def fades(model: nn.Module, now: Moment) -> list[Any]:
    """Every layer shows the edit, and the head is given what it had without."""
    norm = final_norm(model, now.layers)
    return [_give_clean_input(norm, lambda _: True)] if norm is not None else []


@FORWARD.fault("edit-cached-only", cases="multigen.write", verdicts=_HALF)
def cached_only(model: nn.Module, now: Moment) -> list[Any]:
    """Of a prompt the edit is in the keys and values of the next layer, and nowhere else."""
    after = layer_of(model, now, 1)
    return [_give_clean_output(after, lambda forward: forward == 0)] if after is not None else []


@FORWARD.fault("edit-present-only", cases="multigen.write", verdicts=_HALF)
def present_only(model: nn.Module, now: Moment) -> list[Any]:
    """Later steps attend to keys and values as if nothing had been written before."""
    assert now.at is not None  # noqa: S101 - every variant names a layer
    later = [layer_of(model, now, further) for further in range(1, now.layers - now.at)]
    local = [part for part in later if part is not None]
    branches = [branch for part in local if (branch := attention(part)) is not None]
    if local and not branches:
        raise Inexpressible("the layers have no attention of their own")
    return [_give_clean_output(branch, lambda forward: forward > 0) for branch in branches]


def _after(model: nn.Module, now: Moment) -> nn.Module | None:
    """Return what comes after the layer: the next one, or the final norm. None if another process
    holds it.
    """
    is_last = now.at is not None and now.at + 1 == now.layers
    return final_norm(model, now.layers) if is_last else layer_of(model, now, 1)
