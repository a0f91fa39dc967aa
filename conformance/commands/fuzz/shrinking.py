"""Minimise a program that differs, one batch of smaller candidates at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import chain, combinations, product
from typing import Any, cast

from conformance.commands.fuzz.causes import Failure, ProgramDifference, same_failures
from conformance.spec.programs import Do, Operation, Program, valid
from conformance.spec.records import Backend, Precision

#: The most batches for minimising one program.
ROUNDS = 10
#: The most programs that are tried at once.
MOST = 48
#: The most when each failing program makes its engine restart.
MOST_FATAL = 14
#: What a plain operation has of these fields.
_DEFAULTS: dict[str, Any] = {
    name: getattr(Operation(Do.READ), name)
    for name in ("tokens", "prompt", "step", "amount", "seed", "value")
}


class Stage(StrEnum):
    """What the next batch of a difference tries."""

    PEEL = "without what is known already"
    FEW = "few of its operations"
    SIMPLER = "something less"
    WHOLE = "on every column"
    DONE = "done"


@dataclass(eq=False)
class Shrinking:
    """One program being minimised. `failures` are those of the present program on `backends`, the
    fewest columns that show the difference: the first that fails, and transformers. `seen` are the
    failures of the drawn program.
    """

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

    def difference(self, cause: str = "", explained: str = "") -> ProgramDifference:
        """Return what the present program shows, as a finding of this cause."""
        return ProgramDifference(
            self.model,
            self.program,
            tuple(self.failures.values()),
            self.drawn,
            cause,
            explained,
            after=self.after,
            seconds=self.seconds,
        )

    @property
    def precisions(self) -> tuple[Precision, ...]:
        """The precisions in which a smaller program must run to show the same."""
        shown = {failure.precision for failure in self.failures.values()}
        return tuple(one for one in Precision if one in {Precision.FLOAT32, *shown})

    def candidates(self) -> list[Program]:
        """Return the programs to try next, and remember them until `take` receives the results."""
        if self.stage is Stage.FEW:
            self.tried = keep_few(self.program)
        elif self.stage is Stage.SIMPLER:
            self.tried = simplify(self.program)
        else:
            self.tried = [self.program]
        fatal = any(failure.kind != "value" for failure in self.failures.values())
        self.tried = self.tried[: MOST_FATAL if fatal else MOST]
        return self.tried

    @property
    def columns(self) -> tuple[Backend, ...]:
        """The columns on which the candidates run."""
        return self.every if self.stage is Stage.WHOLE else self.backends

    def take(self, results: Mapping[str, Mapping[str, Failure]]) -> None:
        """Continue from the candidates' failures, by program name and column."""
        self.rounds += 1
        if self.stage in {Stage.PEEL, Stage.WHOLE}:
            self.failures = dict(results[self.program.name])
            if self.stage is Stage.WHOLE or not self.failures:
                self.stage = Stage.DONE
            else:
                self.stage = Stage.FEW if keep_few(self.program) else Stage.SIMPLER
            return
        alike = [
            program
            for program in self.tried
            if same_failures(self.failures, results.get(program.name, {}))
        ]
        if alike:
            self.program = min(alike, key=size)
            self.failures = dict(results[self.program.name])
        over = not alike and self.stage is Stage.SIMPLER
        is_least = over or self.rounds >= ROUNDS or not simplify(self.program)
        self.stage = Stage.WHOLE if is_least else Stage.SIMPLER


def few_columns(
    failures: Mapping[str, Failure], backends: Sequence[Backend]
) -> tuple[Backend, ...]:
    """Return the first column that fails and transformers: whether transformers also fails
    distinguishes causes.
    """
    first = next(backend for backend in backends if backend.id in failures)
    beside = next((backend for backend in backends if backend.engine == "hf"), first)
    return (first,) if beside is first else (beside, first)


def size(program: Program) -> tuple[int, ...]:
    """Return the sort key of a program's size: operations count first."""
    return (
        len(program.operations),
        len(program.prompts),
        program.steps,
        len(program.groups),
        sum(_detail(op) for op in program.operations),
        sum(map(len, program.prompts)),
    )


def _detail(operation: Operation) -> int:
    changed: int = sum(getattr(operation, name) != value for name, value in _DEFAULTS.items())
    takes = operation.do in (Do.PRODUCT, Do.DIFFERENCE, Do.PROJECT, Do.REPLACE)
    return changed + 2 * takes + (operation.do is not Do.READ)


def keep_few(program: Program) -> list[Program]:
    """Return the program with none, each one, each two, and all but one of its operations."""
    every = range(len(program.operations))
    subsets = [set(subset) for count in (0, 1, 2) for subset in combinations(every, count)]
    subsets += [set(every) - {index} for index in every]
    programs = [keep_operations(program, subset) for subset in subsets]
    return _distinct([*programs, *_plain_ones(programs)], program)


def simplify(program: Program) -> list[Program]:
    """Return programs that are simpler in one respect, or in several."""
    return _distinct(map(_tidied, chain(_simpler(program), _plain_ones([program]))), program)


def _plain_ones(programs: Iterable[Program]) -> Iterator[Program]:
    """Yield each program with default values, on all of its prompts, on two, and on one."""
    taking = {name: value for name, value in _DEFAULTS.items() if name != "value"}
    for program, defaults in product(programs, (taking, _DEFAULTS)):
        operations = tuple(
            op if op.do in (Do.FORCE, Do.STOP) else replace(op, **defaults)
            for op in program.operations
        )
        plain = replace(program, operations=operations, traces=())
        yield plain
        plain = _with_steps(plain, 1)
        yield plain
        for prompt in reversed(range(2, len(plain.prompts))):
            plain = without_prompt(plain, prompt)
        yield plain
        yield keep_one_prompt(plain)


def _distinct(candidates: Iterable[Program], than: Program) -> list[Program]:
    distinct = {
        candidate.name: candidate
        for candidate in candidates
        if valid(candidate) and candidate != than and size(candidate) < size(than)
    }
    return sorted(distinct.values(), key=size)[:MOST]


def _simpler(program: Program) -> Iterator[Program]:
    operations = program.operations
    for index in range(len(operations)):
        yield keep_operations(program, set(range(len(operations))) - {index})
    for prompt in range(len(program.prompts)):
        yield without_prompt(program, prompt)
        yield keep_one_prompt(program, prompt)
    yield replace(program, traces=())
    used = max((op.step for op in operations if op.step is not None), default=0) + 1
    for steps in {1, used, program.steps - 1}:
        if 1 <= steps < program.steps:
            yield _with_steps(program, steps)
    for index, operation in enumerate(operations):
        for plainer in _plainer(operation):
            changed = (*operations[:index], plainer, *operations[index + 1 :])
            yield replace(program, operations=changed)
    for text in program.prompts[1:]:
        yield replace(program, prompts=(text,) * len(program.prompts))


def _plainer(operation: Operation) -> Iterator[Operation]:
    for name, default in _DEFAULTS.items():
        yield replace(operation, **{name: default})
    if operation.do in (Do.PROJECT, Do.REPLACE, Do.SCALE):
        yield replace(operation, do=Do.ADD, value=None, amount=1.0)
    # Writes also read their place back. If reading alone differs, the write is not needed.
    if operation.do.observes:
        yield replace(operation, do=Do.READ, value=None, amount=1.0, seed=0)


def keep_operations(program: Program, kept: set[int]) -> Program:
    """Return the program with only these operations and those whose values they take."""
    indices = set(kept)
    while more := {program.operations[index].value for index in indices} - {None, *indices}:
        indices |= cast("set[int]", more)
    order = sorted(indices)
    operations = (program.operations[index] for index in order)
    return replace(
        program,
        operations=tuple(
            op if op.value is None else replace(op, value=order.index(op.value))
            for op in operations
        ),
    )


def remove_operations(program: Program, removed: set[int]) -> Program:
    """Return the program without these operations and without those that take their values."""
    dropped, every = set(removed), set(range(len(program.operations)))
    while more := {at for at in every - dropped if program.operations[at].value in dropped}:
        dropped |= more
    return keep_operations(program, every - dropped)


def without_prompt(program: Program, dropped: int) -> Program:
    """Return the program without one prompt and its operations."""
    if len(program.prompts) == 1:
        return program
    own = {index for index, op in enumerate(program.operations) if op.prompt == dropped}
    smaller = remove_operations(program, own)
    new = {p: p - (p > dropped) for p in range(len(program.prompts))}
    groups = (tuple(new[p] for p in group if p != dropped) for group in program.traces)
    return replace(
        smaller,
        prompts=(*program.prompts[:dropped], *program.prompts[dropped + 1 :]),
        operations=tuple(
            op if op.prompt is None else replace(op, prompt=new[op.prompt])
            for op in smaller.operations
        ),
        traces=tuple(filter(None, groups)),
    )


def keep_one_prompt(program: Program, kept_prompt: int = 0) -> Program:
    """Return the program with one prompt and one step."""
    for prompt in reversed(range(len(program.prompts))):
        if prompt != kept_prompt:
            program = without_prompt(program, prompt)
    return _with_steps(replace(program, traces=()), 1)


def _with_steps(program: Program, steps: int) -> Program:
    late = {index for index, op in enumerate(program.operations) if (op.step or 0) >= steps}
    smaller = remove_operations(program, late)
    fewer = tuple(replace(op, step=None if steps == 1 else op.step) for op in smaller.operations)
    return replace(smaller, operations=fewer, steps=steps)


def _tidied(program: Program) -> Program:
    """Drop the prompt numbers of a single prompt and the traces of a single trace."""
    operations = program.operations
    if len(program.prompts) == 1 and not any(op.do is Do.STOP for op in operations):
        operations = tuple(replace(op, prompt=None) for op in operations)
    traces = program.traces if len(program.groups) > 1 else ()
    return replace(program, operations=operations, traces=traces)
