"""The engine that runs programs with any library."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from conformance.engines import Refused
from conformance.engines.libraries import Library, PromptBatch
from conformance.engines.model_parts import require_layers
from conformance.engines.traced import Probe, flatten_runs, read_probe, vector
from conformance.programs import Acts, Do, Form, Program, check, gathered, observed
from conformance.records import Case, Group, Job
from conformance.scenario import Scenario

#: The refusal of a scenario that has no program.
NO_FORM = "no program: the scenario is written as an nnsight trace only"


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
        saved: list[Mapping[Any, Any]] = [{} for _ in program.prompts]
        for group in program.groups:
            acts = [
                Acts(program, prompt, values, self._direction, active=active) for prompt in group
            ]
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

    def _direction(self, layer: int, seed: int = 0) -> Tensor:
        return vector(self.probe, layer, seed).to(self.dtype)

    def prompt_ids(self, case: Case) -> Sequence[Sequence[int]]:
        return tuple(tuple(self.library.tokenize(prompt)) for prompt in case.prompts)

    def close(self) -> None:
        pass
