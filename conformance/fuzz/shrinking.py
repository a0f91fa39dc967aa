"""From a program that differs to the least that does, a batch of smaller ones at a time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from conformance.fuzz import smaller
from conformance.fuzz.causes import Failure, same_failures
from conformance.programs import Program
from conformance.records import Backend, Precision

#: Batches that one program is made smaller in, at most.
ROUNDS = 10


class Stage(StrEnum):
    """What the next batch of a difference is for."""

    PEEL = "without what is known already"
    FEW = "few of its operations"
    SIMPLER = "something less"
    WHOLE = "on every column"
    DONE = "done"


@dataclass
class Shrinking:
    """One program on its way. `failures` are those of the present program on `backends`, the
    fewest columns that show what it is: the first that fails, and transformers beside it. `seen`
    are those of the program that was drawn.
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
        """In which a smaller program must be run to show the same."""
        shown = {failure.precision for failure in self.failures.values()}
        return tuple(one for one in Precision if one in {Precision.FLOAT32, *shown})

    def candidates(self) -> list[Program]:
        """What to try next; remembered until `take` is told what came of it."""
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
        """Where the candidates run."""
        return self.every if self.stage is Stage.WHOLE else self.backends

    def take(self, results: Mapping[str, Mapping[str, Failure]]) -> None:
        """Go on from what the candidates did: by their names, how each failed by column."""
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
    """The first column that fails, and transformers: whether that one fails as well tells causes
    apart.
    """
    first = next(backend for backend in backends if backend.id in failures)
    beside = next((backend for backend in backends if backend.engine == "hf"), first)
    return (first,) if beside is first else (beside, first)
