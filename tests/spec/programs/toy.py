"""A model of a few matrices, which runs as the reference does and as a library does: a batch
padded on the left, hooks by the place's name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from conformance.engines.libraries.adapter import Ends, PromptBatch
from conformance.spec.direction import direction
from conformance.spec.programs import Program
from conformance.spec.records import Backend, Case, Column, Job, Model, Precision
from conformance.spec.scenario import Scenario, discover

ROOT = Path(__file__).parents[3]
WIDTH, WORDS = 8, 16


def cases(layers: int) -> list[tuple[Scenario, Case]]:
    """Every case of a scenario that says which program it is, for a model of so many layers."""
    return [
        (scenario, case)
        for scenario in discover(ROOT / "scenarios").values()
        for case in scenario.expand(layers)
        if scenario.form(layers, case) is not None
    ]


def charter(layers: int) -> Mapping[str, Program]:
    """The programs of the scenarios that this project began with, by scenario and case."""
    return {
        f"{case.scenario}-{case.name}": scenario.form(layers, case).program
        for scenario, case in cases(layers)
    }


def library_job(engine: str, **options: bool) -> Job:
    """A job of another library's column, in float32 and without cases."""
    column = Column(Backend(engine, engine, options=options))
    places = (Path("checkpoint"), Path(), Path(), ())
    return Job(engine, Model("m", "m", ()), column, *places, precision=Precision.FLOAT32)


@dataclass
class Run:
    stream: list[dict[int, Tensor]] = field(default_factory=list)
    logits: list[Tensor] = field(default_factory=list)
    tokens: list[Tensor] = field(default_factory=list)

    def after(self, layer: int) -> list[dict[int, Tensor]]:
        return [{at: rows for at, rows in one.items() if at >= layer} for one in self.stream]


class Toy:
    """Positions do not look at each other, so that padding needs no mask."""

    forced: tuple[tuple[int, ...], ...] = ()

    def __init__(self, layers: int) -> None:
        chance = torch.Generator().manual_seed(1)
        self.words = torch.randn(WORDS, WIDTH, generator=chance)
        self.weights = [torch.randn(WIDTH, WIDTH, generator=chance) / 3 for _ in range(layers)]
        self.layers = layers
        self.missing: tuple[str, int | None] | None = None

    def identity(self) -> Mapping[str, str]:
        return {}

    def tokenize(self, prompt: str) -> list[int]:
        return [len(word) % WORDS for word in prompt.split()]

    def direction(self, layer: int, seed: int = 0) -> Tensor:
        return direction(WIDTH, 1.0 + layer, seed)

    def run(self, prompt: Any, *, edits: Any = None, steps: int = 1, **_: Any) -> Any:
        if isinstance(prompt, PromptBatch):
            return self._batch(prompt)
        ids, run = torch.tensor(self.tokenize(prompt)), Run()
        for _step in range(steps):
            rows, streams = self.words[ids], {}
            for layer, weight in enumerate(self.weights):
                rows = rows + torch.tanh(rows @ weight)
                if edits and layer in edits:
                    rows = edits[layer](rows, streams)
                streams[layer] = rows
            logits = rows[-1] @ self.words.T
            ids = logits.argmax().reshape(1)
            run.stream.append(streams)
            run.logits.append(logits)
            run.tokens.append(ids)
        return run

    def _batch(self, batch: PromptBatch) -> list[Ends]:
        ids = [self.tokenize(prompt) for prompt in batch.prompts]
        widest = max(map(len, ids))
        now = torch.tensor([[0] * (widest - len(own)) + own for own in ids])
        ends = [Ends([], []) for _ in ids]
        for _step in range(batch.steps):
            rows = self.words[now]
            for layer, weight in enumerate(self.weights):
                rows = rows + torch.tanh(rows @ weight)
                place = ("stream", layer)
                if place in batch.places and place != self.missing:
                    changed = batch.pass_by(place, rows)
                    rows = rows if changed is None else changed
            logits = rows[:, -1] @ self.words.T
            now = logits.argmax(-1, keepdim=True)
            for index, end in enumerate(ends):
                end.logits.append(logits[index])
                end.tokens.append(now[index])
        return ends
