"""Other interpretability libraries as engines, which run programs instead of nnsight traces.

An adapter is a module with a `Library` class and an `open_engine` function. It translates a program
into the library's API and knows nothing of scenarios. docs/libraries.md shows one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from conformance.engines import Refused
from conformance.engines.model_parts import require_layers
from conformance.engines.traced import Probe, flatten_runs, read_probe, vector
from conformance.spec.authoring import Visit
from conformance.spec.programs import Acts, Do, Form, ModelPart, Program, check, gathered, observed
from conformance.spec.records import Case, Group, Job
from conformance.spec.scenario import Scenario

#: The refusal of a scenario that has no program.
NO_FORM = "no program: the scenario is written as an nnsight trace only"

#: A part of the model and, for parts of layers, the layer.
Place = tuple[str, int | None]


class Ends(NamedTuple):
    """The outputs for one prompt: per step, logits [vocabulary] and the token, int64 [1]."""

    logits: list[Tensor]
    tokens: list[Tensor]


def ends_of(logits: Sequence[Tensor], sequences: Tensor) -> list[Ends]:
    """Return the outputs for each prompt from a batch's: the logits [prompts, vocabulary] of each
    step, and the ids [prompts, tokens], whose last ones were generated.
    """
    return [
        Ends([step[index] for step in logits], list(own[-len(logits) :].split(1)))
        for index, own in enumerate(sequences)
    ]


class PromptBatch:
    """Prompts that run together, and the visits that each makes at places in a forward.

    `lengths` are the prompts' token counts; the library must pad them on the left.
    """

    def __init__(
        self, prompts: Sequence[str], visits: Sequence[Mapping[Place, Visit]], steps: int
    ) -> None:
        self.prompts = list(prompts)
        self.visits = visits
        self.steps = steps
        self.lengths: list[int] = []
        self._passed: Counter[Place] = Counter()

    def each(self) -> Iterator[tuple[str, PromptBatch]]:
        """Yield the prompts one at a time, for a library that takes only one."""
        for index, prompt in enumerate(self.prompts):
            alone = PromptBatch([prompt], self.visits[index : index + 1], self.steps)
            alone.lengths = self.lengths[index : index + 1]
            yield prompt, alone

    @property
    def places(self) -> list[Place]:
        """Every place that a prompt of the batch visits, in the order of a forward."""
        parts = list(ModelPart)
        named = dict.fromkeys(place for visits in self.visits for place in visits)
        first = {ModelPart.EMBEDDING: -1, ModelPart.NORM: 1 << 30}
        return sorted(
            named,
            key=lambda place: (
                first.get(ModelPart(place[0]), 0) if place[1] is None else place[1],
                parts.index(ModelPart(place[0])),
            ),
        )

    def pass_by(self, place: Place, whole: Tensor) -> Tensor | None:
        """Return the replacement for `whole` [prompts, positions, width] at a place, or None if
        nothing changes. Call it once per step. The rows before a prompt's own are padding.
        """
        step = self._passed[place]
        self._passed[place] += 1
        changed: Tensor | None = None
        for index, visits in enumerate(self.visits):
            if place not in visits:
                continue
            own = slice(-self.lengths[index], None) if step == 0 else slice(None)
            rows = whole[index, own]
            after = visits[place](step, rows)
            if after is not rows:
                changed = whole.clone() if changed is None else changed
                changed[index, own] = after.to(whole.dtype)
        return changed


class Library(Protocol):
    """A model loaded with an interpretability library."""

    @property
    def layers(self) -> int: ...

    def identity(self) -> Mapping[str, str]:
        """Return what was loaded: "dtype", as torch writes it, and other relevant facts."""

    def tokenize(self, prompt: str) -> list[int]:
        """Return the library's token ids for a text."""

    def run(self, batch: PromptBatch) -> list[Ends]:
        """Generate greedily for all prompts of the batch, in one call of the library if it supports
        that. Raises Refused, with the reason, if the library cannot run the batch.
        """


def named(names: Mapping[ModelPart, str], place: Place, library: str) -> str:
    """Return the library's name of a place. Raises Refused if it has none."""
    part, layer = place
    if part not in names:
        raise Refused(f"{library} has no name for this place: {part}")
    return names[ModelPart(part)].format(layer=layer)


class LibraryEngine:
    """A library's model, which runs each case as a program."""

    def __init__(self, job: Job, library: Library) -> None:
        self.job = job
        self.library = library
        self.dtype: torch.dtype = getattr(torch, job.precision.dtype)
        self.probe = read_probe(job.probe) if job.probe else Probe((), ())

    def group(self) -> Group:
        identity = {"engine": self.job.backend.engine, **self.library.identity()}
        return Group(model=self.job.model.id, backend=self.job.column.id, identity=identity)

    def run(self, scenario: Scenario, case: Case) -> Mapping[str, Tensor]:
        require_layers(case, self.library.layers)
        form = scenario.form(self.library.layers, case)
        if form is None:
            raise Refused(NO_FORM)
        program = check(form.program if isinstance(form, Form) else form)
        for operation in program.operations:
            if operation.do in (Do.STOP, Do.FORCE):
                raise Refused(f"no column of a library does this: {operation.do}")

        def run_case(active: Case) -> list[dict[str, Any]]:
            by_prompt = self._run(program, active=active.active)
            if isinstance(form, Form):
                return observed(form, by_prompt)
            return gathered(program, by_prompt, active=active.active)

        return flatten_runs(scenario, case, run_case)

    def _run(self, program: Program, *, active: bool) -> list[Mapping[Any, Any]]:
        """Run every trace and return what each prompt saved."""
        values: dict[tuple[int, int, int], Tensor] = {}

        def direction(layer: int, seed: int = 0) -> Tensor:
            return vector(self.probe, layer, seed).to(self.dtype)

        saved: list[Mapping[Any, Any]] = [{} for _ in program.prompts]
        for group in program.groups:
            acts = [Acts(program, prompt, values, direction, active=active) for prompt in group]
            batch = self.batch(program, acts)
            batch.lengths = [len(self.library.tokenize(text)) for text in batch.prompts]
            with torch.no_grad():
                ends = self.library.run(batch)
            for prompt, act, end in zip(group, acts, ends, strict=True):
                saved[prompt] = act.saved(end.logits, end.tokens)
        return saved

    def batch(self, program: Program, acts: Sequence[Acts]) -> PromptBatch:
        """Return the batch that the library runs for the prompts of one trace."""
        texts = [program.prompts[act.prompt] for act in acts]
        return PromptBatch(texts, [act.visits() for act in acts], program.steps)

    def prompt_ids(self, case: Case) -> Sequence[Sequence[int]]:
        return tuple(tuple(self.library.tokenize(prompt)) for prompt in case.prompts)

    def close(self) -> None:
        pass
