"""Whether the layers' hooks fired in each step in which a block was under way.

An engine that goes around the hooks, a replayed graph or a compiled forward for one, still
answers: a block that reads nothing but logits would be right by accident, and prove nothing of
the hooks. So each step with a block is held against what nnsight counted of this process's layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.source import STATE

from conformance.engines.tree import follow, layer_path


class HooksSkippedError(Exception):
    """A step with a block ran without a hook of the layers: what it did not read proves nothing."""


@dataclass
class Hooks:
    """Of one process: the locations that every forward passes, and the steps with a block."""

    locations: tuple[str, ...]
    counted: int = 0
    steps: int = 0
    silent: int = 0

    def visits(self, counts: Mapping[str, int]) -> int:
        """How often one of the locations was passed so far."""
        return sum(counts.get(location, 0) for location in self.locations)

    def note(self, before: int, counts: Mapping[str, int]) -> None:
        """A step with a block is over; `before` is what was counted when it began."""
        self.steps += 1
        self.silent += self.visits(counts) <= before

    def taken(self) -> dict[str, int]:
        """The steps since this was asked last."""
        counts = {"steps": self.steps, "silent": self.silent}
        self.steps = self.silent = 0
        return counts


def output_locations(model: Any, start: int, end: int, total: int) -> tuple[str, ...]:
    """What nnsight calls the outputs of the whole model and of these of its layers.

    A block may skip the model whole; its own output is then passed all the same.
    """
    layers = follow(model, layer_path(model, total))
    modules = [model, *(layers[index] for index in range(start, end))]
    states = [module.__dict__.get(STATE) for module in modules]
    return tuple(route[2][2] for state in states if state is not None for route in state.routes)


class WatchedRunner:
    """Mixed into nnsight's runner, before it: counts steps with a block, and those unhooked."""

    nnsight_model: Any
    hooks: Hooks | None = None

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """One step."""
        interleaver = self.nnsight_model.interleaver
        hooks = self.hooks
        before = 0 if hooks is None else hooks.visits(interleaver.counts)
        output = super().execute_model(*args, **kwargs)  # type: ignore[misc]
        if hooks is not None and interleaver.mediators:
            hooks.note(before, interleaver.counts)
        return output


def proven(answers: Sequence[Mapping[str, int]]) -> int:
    """The steps in which a block was under way and hooks fired, on the process with the fewest.

    Raises HooksSkippedError where they did not fire in one of these steps.
    """
    for rank, answer in enumerate(answers):
        if answer["silent"]:
            raise HooksSkippedError(
                f"in {answer['silent']} of {answer['steps']} steps with a block no hook of the "
                f"layers fired on rank {rank}: the engine went around them"
            )
    return min((answer["steps"] for answer in answers), default=0)
