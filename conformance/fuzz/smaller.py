"""Generate smaller programs as candidates for the smallest program that differs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

from conformance.programs import Do, Operation, Program, Tokens, valid

#: The most programs that are tried at once.
MOST = 48
#: The most when each failing program makes its engine restart.
MOST_FATAL = 14


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
    return (
        (operation.tokens is not Tokens.ALL)
        + (operation.prompt is not None)
        + (operation.step is not None)
        + (operation.amount != 1)
        + (operation.seed != 0)
        + (operation.value is not None)
        + 2 * (operation.do in (Do.PRODUCT, Do.DIFFERENCE, Do.PROJECT, Do.REPLACE))
        + (operation.do is not Do.READ)
    )


def few(program: Program) -> list[Program]:
    """Return the program with none, each one, each two, and all but one of its operations."""
    every = range(len(program.operations))
    subsets = [set(subset) for count in (0, 1, 2) for subset in combinations(every, count)]
    subsets += [set(every) - {index} for index in every]
    programs = [keeping(program, subset) for subset in subsets]
    return _distinct([*programs, *_plain_ones(programs)], program)


def simpler(program: Program) -> list[Program]:
    """Return programs that are simpler in one respect, or in several."""
    return _distinct(
        (_tidied(candidate) for candidate in [*_simpler(program), *_plain_ones([program])]), program
    )


def _plain_ones(programs: Iterable[Program]) -> Iterator[Program]:
    """Yield each program with default values, on all of its prompts, on two, and on one."""
    for program in programs:
        values = [replace(op, value=None) for op in program.operations]
        for operations in (program.operations, tuple(values)):
            plain = replace(
                program,
                operations=tuple(
                    replace(op, tokens=Tokens.ALL, prompt=None, step=None, amount=1.0, seed=0)
                    if op.do not in (Do.FORCE, Do.STOP)
                    else op
                    for op in operations
                ),
                traces=(),
            )
            yield plain
            plain = _with_steps(plain, 1)
            yield plain
            for prompt in reversed(range(2, len(plain.prompts))):
                plain = without_prompt(plain, prompt)
            yield plain
            yield alone(plain)


def _distinct(candidates: Iterable[Program], than: Program) -> list[Program]:
    distinct = {
        candidate.name: candidate
        for candidate in candidates
        if valid(candidate) and candidate != than and size(candidate) < size(than)
    }
    return sorted(distinct.values(), key=size)[:MOST]


def _simpler(program: Program) -> Iterator[Program]:
    operations = program.operations
    yield alone(program)
    for index in range(len(operations)):
        yield keeping(program, set(range(len(operations))) - {index})
    for prompt in range(len(program.prompts)):
        yield without_prompt(program, prompt)
        yield alone(program, prompt)
    if program.traces:
        yield replace(program, traces=())
    used = max((op.step for op in operations if op.step is not None), default=0) + 1
    for steps in {1, used, program.steps - 1}:
        if 1 <= steps < program.steps:
            yield _with_steps(program, steps)
    for index, operation in enumerate(operations):
        for plainer in _plainer(operation):
            yield replace(
                program, operations=(*operations[:index], plainer, *operations[index + 1 :])
            )
    for text in program.prompts[1:]:
        yield replace(program, prompts=(text,) * len(program.prompts))


def _plainer(operation: Operation) -> Iterator[Operation]:
    plain = Operation(Do.READ)
    for name in ("tokens", "prompt", "step", "amount", "seed", "value"):
        default = getattr(plain, name)
        if getattr(operation, name) != default:
            yield replace(operation, **{name: default})
    if operation.do in (Do.PROJECT, Do.REPLACE, Do.SCALE):
        yield replace(operation, do=Do.ADD, value=None, amount=1.0)
    # Writes also read their place back. If reading alone differs, the write is not needed.
    if operation.do is not Do.READ and operation.do.observes:
        yield replace(operation, do=Do.READ, value=None, amount=1.0, seed=0)


def keeping(program: Program, kept: set[int]) -> Program:
    """Return the program with only these operations and those whose values they take."""
    indices = set(kept)
    while (
        more := {
            op.value for index in indices if (op := program.operations[index]).value is not None
        }
        - indices
    ):
        indices |= more
    order = sorted(indices)
    new = {old: index for index, old in enumerate(order)}
    return replace(
        program,
        operations=tuple(
            replace(op, value=None if op.value is None else new[op.value])
            for op in (program.operations[old] for old in order)
        ),
    )


def without(program: Program, removed: set[int]) -> Program:
    """Return the program without these operations and without those that take their values."""
    dropped = set(removed)
    while more := {
        index
        for index, op in enumerate(program.operations)
        if op.value in dropped and index not in dropped
    }:
        dropped |= more
    return keeping(program, set(range(len(program.operations))) - dropped)


def without_prompt(program: Program, dropped: int) -> Program:
    """Return the program without one prompt and its operations."""
    if len(program.prompts) == 1:
        return program
    own = {index for index, op in enumerate(program.operations) if op.prompt == dropped}
    smaller = without(program, own)

    def renumbered(prompt: int | None) -> int | None:
        return prompt if prompt is None or prompt < dropped else prompt - 1

    groups = tuple(
        tuple(p if p < dropped else p - 1 for p in group if p != dropped)
        for group in program.groups
    )
    return replace(
        smaller,
        prompts=tuple(text for index, text in enumerate(smaller.prompts) if index != dropped),
        operations=tuple(replace(op, prompt=renumbered(op.prompt)) for op in smaller.operations),
        traces=tuple(filter(None, groups)) if program.traces else (),
    )


def alone(program: Program, kept_prompt: int = 0) -> Program:
    """Return the program with one prompt and one step."""
    for prompt in reversed(range(len(program.prompts))):
        if prompt != kept_prompt:
            program = without_prompt(program, prompt)
    return _with_steps(replace(program, traces=()), 1)


def _with_steps(program: Program, steps: int) -> Program:
    late = {
        index
        for index, op in enumerate(program.operations)
        if op.step is not None and op.step >= steps
    }
    smaller = without(program, late)
    fewer = tuple(replace(op, step=None if steps == 1 else op.step) for op in smaller.operations)
    return replace(smaller, operations=fewer, steps=steps)


def _tidied(program: Program) -> Program:
    """Drop the prompt numbers of a single prompt and the traces of a single trace."""
    operations = program.operations
    if len(program.prompts) == 1 and not any(op.do is Do.STOP for op in operations):
        operations = tuple(replace(op, prompt=None) for op in operations)
    traces = program.traces if len(program.groups) > 1 else ()
    return replace(program, operations=operations, traces=traces)
