"""Faults of lost edits: in the engine's forward, after the layer that was written.

The clean run comes first, and its values are kept. In the edited run they replace the values that
should show the edit: the value read back is right, and what follows is as without the edit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from conformance.commands.selftest.fault import FaultFamily, Inexpressible, Moment, Point
from conformance.commands.selftest.faults.model import attention, layer_of
from conformance.spec.records import Side, Verdict

#: A forward with more rows begins a run: prompts are longer, and few requests decode at once.
_DECODING = 4
_LOST = (Verdict.DROPPED, Verdict.PARTIAL)
_HALF = (*_LOST, Verdict.MISSCALED, Verdict.WRONG, Verdict.CONTAMINATED)

FORWARD = FaultFamily(side=Side.NNSIGHT, point=Point.FORWARD, verdicts=_LOST, places="middle")


@dataclass
class _CleanValues:
    """The float tensors of one shape among a module's inputs or outputs in the clean run, by
    forward.
    """

    in_forward: Callable[[int], bool]
    runs: int = -1
    forward: int = 0
    clean: dict[int, list[Tensor]] = field(default_factory=dict)

    def restore(self, values: list[Any]) -> list[Any] | None:
        """Return the edited run's values with the clean run's streams; None to change nothing."""
        floats = [v for v in values if isinstance(v, Tensor) and v.is_floating_point()]
        streams = [value for value in floats if value.shape == floats[0].shape]
        if not streams:
            return None
        self.forward += 1
        if streams[0].numel() // streams[0].shape[-1] > _DECODING:
            self.runs, self.forward = self.runs + 1, 0
        if self.runs == 0:
            self.clean[self.forward] = [value.clone() for value in streams]
        clean = self.clean.get(self.forward)
        if self.runs != 1 or clean is None or not self.in_forward(self.forward):
            return None
        if any(new.shape != old.shape for new, old in zip(streams, clean, strict=True)):
            return None
        clean_of = {id(new): old.clone() for new, old in zip(streams, clean, strict=True)}
        return [clean_of.get(id(value), value) for value in values]


def _give_clean_input(module: nn.Module, in_forward: Callable[[int], bool]) -> Any:
    """Give the module its input of the clean run."""
    clean = _CleanValues(in_forward)

    def hook(_: Any, args: Any, kwargs: Any) -> Any:
        given = clean.restore([*args, *kwargs.values()])
        count = len(args)
        return given and (tuple(given[:count]), dict(zip(kwargs, given[count:], strict=True)))

    return module.register_forward_pre_hook(hook, with_kwargs=True)


def _give_clean_output(module: nn.Module, in_forward: Callable[[int], bool]) -> Any:
    """Replace the module's output by that of the clean run."""
    clean = _CleanValues(in_forward)

    def hook(_: Any, args: Any, output: Any) -> Any:
        several = isinstance(output, tuple)
        given = clean.restore([*output] if several else [output])
        return given and (tuple(given) if several else given[0])

    return module.register_forward_hook(hook)


@FORWARD.fault(
    "edit-undone",
    cases=("steering.middle-small-one", "steering.middle-large-all", "ablation.middle"),
    quick=True,
)
def undone(model: nn.Module, now: Moment) -> list[Any]:
    """The layer after the one that was written is given what was there before."""
    after = layer_of(model, now, 1)
    return [_give_clean_input(after, lambda _: True)] if after is not None else []


FORWARD.add(
    "raw-undone",
    undone,
    "A module's output is set to zero in place, and the next layer is given what was there.",
    cases=("raw.write_first", "raw.write_sum"),  # a model's layers have one of the two layouts
)


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
