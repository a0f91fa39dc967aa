"""Checks that the layers' hooks fired in each step with a block.

An engine that bypasses the hooks, for example with a replayed graph or a compiled forward, still
answers. A block that reads only logits would be right by accident and prove nothing about the
hooks. Therefore each step with a block is compared with nnsight's counts for this process's layers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.source import STATE

from conformance.engines.tree import follow, layer_path


class HooksSkippedError(Exception):
    """A step with a block ran without any hook of the layers, so its result proves nothing."""


@dataclass
class Hooks:
    """One process's locations that every forward passes, and its counts of steps with a block."""

    locations: tuple[str, ...]
    steps: int = 0
    silent: int = 0

    def visits(self, counts: Mapping[str, int]) -> int:
        """Return how many times the locations have been passed."""
        return sum(counts.get(location, 0) for location in self.locations)

    def taken(self) -> dict[str, int]:
        """Return the counts of steps since the last call, and reset them."""
        counts = {"steps": self.steps, "silent": self.silent}
        self.steps = self.silent = 0
        return counts


def output_locations(model: Any, start: int, end: int, total: int) -> tuple[str, ...]:
    """Return nnsight's names of the outputs of the whole model and of layers `start` to `end`.

    A block may skip the whole model, which still passes the model's own output.
    """
    layers = follow(model, layer_path(model, total))
    modules = [model, *(layers[index] for index in range(start, end))]
    states = [module.__dict__.get(STATE) for module in modules]
    return tuple(route[2][2] for state in states if state is not None for route in state.routes)


class WatchedRunner:
    """Mixed into nnsight's runner, ahead of it: counts steps with a block and without hooks."""

    nnsight_model: Any
    hooks: Hooks | None = None

    def execute_model(self, *args: Any, **kwargs: Any) -> Any:
        """Run one step, and count it if it has a block."""
        interleaver, hooks = self.nnsight_model.interleaver, self.hooks
        before = 0 if hooks is None else hooks.visits(interleaver.counts)
        output = super().execute_model(*args, **kwargs)  # type: ignore[misc]
        if hooks is not None and interleaver.mediators:
            hooks.steps += 1
            hooks.silent += hooks.visits(interleaver.counts) <= before
        return output


def proven(answers: Sequence[Mapping[str, int]]) -> int:
    """Return the number of steps with a block, on the process with the fewest.

    Raises HooksSkippedError if no hook fired in one of these steps.
    """
    for rank, answer in enumerate(answers):
        if answer["silent"]:
            raise HooksSkippedError(
                f"in {answer['silent']} of {answer['steps']} steps with a block no hook of the "
                f"layers fired on rank {rank}: the engine went around them"
            )
    return min((answer["steps"] for answer in answers), default=0)
