"""Minimise a program that differs, one batch of smaller candidates at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from conformance.fuzz import smaller
from conformance.fuzz.causes import Failure, same_failures
from conformance.programs import Program
from conformance.records import Backend, Precision

#: The most batches for minimising one program.
ROUNDS = 10


class Stage(StrEnum):
    """What the next batch of a difference tries."""

    PEEL = "without what is known already"
    FEW = "few of its operations"
    SIMPLER = "something less"
    WHOLE = "on every column"
    DONE = "done"


@dataclass
class Shrinking:
    """One program being minimised. `failures` are those of the present program on `backends`, the
    fewest columns that show the difference: the first that fails, and transformers. `seen` are the
    failures of the drawn program.
    """

    number: int
    model: str
    drawn: Program
    program: Program
    failures: dict[str, Failure]
    backends: tuple[Backend, ...]
    every: tuple[Backend, ...]
    stage: Stage = Stage.FEW
    peeled_from: str = ""
    rounds: int = 0
    after: int = 0
    seconds: float = 0.0
    tried: list[Program] = field(default_factory=list)
    seen: Mapping[str, Failure] = field(init=False)

    def __post_init__(self) -> None:
        self.seen = dict(self.failures)

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions in which a smaller program must run to show the same."""
        shown = {failure.precision for failure in self.failures.values()}
        return tuple(one for one in Precision if one in {Precision.FLOAT32, *shown})

    def candidates(self) -> list[Program]:
        """Return the programs to try next, and remember them until `take` receives the results."""
        if self.stage is Stage.FEW:
            self.tried = smaller.few(self.program)
        elif self.stage is Stage.SIMPLER:
            self.tried = smaller.simpler(self.program)
        else:
            self.tried = [self.program]
        fatal = any(failure.kind != "value" for failure in self.failures.values())
        self.tried = self.tried[: smaller.MOST_FATAL if fatal else smaller.MOST]
        return self.tried

    @property
    def columns(self) -> tuple[Backend, ...]:
        """The columns on which the candidates run."""
        return self.every if self.stage is Stage.WHOLE else self.backends

    def take(self, results: Mapping[str, Mapping[str, Failure]]) -> None:
        """Continue from the candidates' failures, by program name and column."""
        self.rounds += 1
        if self.stage is Stage.PEEL:
            failures = dict(results[self.program.name])
            self.failures = failures
            self.stage = self._next_of_few() if failures else Stage.DONE
            return
        if self.stage is Stage.WHOLE:
            self.failures = dict(results[self.program.name])
            self.stage = Stage.DONE
            return
        alike = [
            program
            for program in self.tried
            if same_failures(self.failures, results.get(program.name, {}))
        ]
        if alike:
            self.program = min(alike, key=smaller.size)
            self.failures = dict(results[self.program.name])
        over = not alike and self.stage is Stage.SIMPLER
        if over or self.rounds >= ROUNDS or not smaller.simpler(self.program):
            self.stage = Stage.WHOLE
        else:
            self.stage = Stage.SIMPLER

    def _next_of_few(self) -> Stage:
        return Stage.FEW if smaller.few(self.program) else Stage.SIMPLER


def few_columns(
    failures: Mapping[str, Failure], backends: Sequence[Backend]
) -> tuple[Backend, ...]:
    """Return the first column that fails and transformers: whether transformers also fails
    distinguishes causes.
    """
    first = next(backend for backend in backends if backend.id in failures)
    beside = next((backend for backend in backends if backend.engine == "hf"), first)
    return (first,) if beside is first else (beside, first)
