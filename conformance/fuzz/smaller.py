"""Smaller programs: what a program that differs is tried against, to find the least that does."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import combinations

from conformance.programs import Do, Operation, Program, Tokens, valid

#: Programs that are tried at once, at most.
MOST = 48
#: The same where an engine is started anew after each that fails.
MOST_FATAL = 14


def size(program: Program) -> tuple[int, ...]:
    """What is to become small: operations first."""
    return (
        len(program.operations),
        len(program.prompts),
        program.steps,
        len(program.groups),
        sum(_detail(one) for one in program.operations),
        sum(map(len, program.prompts)),
    )


def _detail(one: Operation) -> int:
    return (
        (one.tokens is not Tokens.ALL)
        + (one.prompt is not None)
        + (one.step is not None)
        + (one.amount != 1)
        + (one.seed != 0)
        + (one.value is not None)
        + 2 * (one.do in (Do.PRODUCT, Do.DIFFERENCE, Do.PROJECT, Do.REPLACE))
    )


def few(program: Program) -> list[Program]:
    """The program without operations, with each one of them, and with each two."""
    every = range(len(program.operations))
    chosen = [set(which) for count in (0, 1, 2) for which in combinations(every, count)]
    chosen += [set(every) - {index} for index in every]
    kept = [keeping(program, which) for which in chosen]
    return _distinct([*kept, *_plain_ones(kept)], program)


def simpler(program: Program) -> list[Program]:
    """The program with one thing less, or several."""
    return _distinct(
        (_tidied(one) for one in [*_simpler(program), *_plain_ones([program])]), program
    )


def _plain_ones(programs: Iterable[Program]) -> Iterator[Program]:
    """Each with everything at its default, on all of its prompts, on two and on one."""
    for program in programs:
        values = [replace(one, value=None) for one in program.operations]
        for operations in (program.operations, tuple(values)):
            plain = replace(
                program,
                operations=tuple(
                    replace(one, tokens=Tokens.ALL, prompt=None, step=None, amount=1.0, seed=0)
                    if one.do not in (Do.FORCE, Do.STOP)
                    else one
                    for one in operations
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
    found = {
        one.name: one for one in candidates if valid(one) and one != than and size(one) < size(than)
    }
    return sorted(found.values(), key=size)[:MOST]


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
    used = max((one.step for one in operations if one.step is not None), default=0) + 1
    for steps in {1, used, program.steps - 1}:
        if 1 <= steps < program.steps:
            yield _with_steps(program, steps)
    for index, one in enumerate(operations):
        for other in _plainer(one):
            yield replace(
                program, operations=(*operations[:index], other, *operations[index + 1 :])
            )
    for text in program.prompts[1:]:
        yield replace(program, prompts=(text,) * len(program.prompts))


def _plainer(one: Operation) -> Iterator[Operation]:
    plain = Operation(Do.READ)
    for name in ("tokens", "prompt", "step", "amount", "seed", "value"):
        default = getattr(plain, name)
        if getattr(one, name) != default:
            yield replace(one, **{name: default})
    if one.do in (Do.PROJECT, Do.REPLACE, Do.SCALE):
        yield replace(one, do=Do.ADD, value=None, amount=1.0)
    if one.do in (Do.DIFFERENCE, Do.PRODUCT):
        yield replace(one, do=Do.READ, value=None)


def keeping(program: Program, which: set[int]) -> Program:
    """The program with these operations, and those whose values they take."""
    kept = set(which)
    while (
        more := {
            one.value for index in kept if (one := program.operations[index]).value is not None
        }
        - kept
    ):
        kept |= more
    order = sorted(kept)
    new = {old: index for index, old in enumerate(order)}
    return replace(
        program,
        operations=tuple(
            replace(one, value=None if one.value is None else new[one.value])
            for one in (program.operations[old] for old in order)
        ),
    )


def without(program: Program, which: set[int]) -> Program:
    """The program without these operations, and without those that take their values."""
    gone = set(which)
    while more := {
        index
        for index, one in enumerate(program.operations)
        if one.value in gone and index not in gone
    }:
        gone |= more
    return keeping(program, set(range(len(program.operations))) - gone)


def without_prompt(program: Program, gone: int) -> Program:
    """The program without one prompt, and what is done with it."""
    if len(program.prompts) == 1:
        return program
    own = {index for index, one in enumerate(program.operations) if one.prompt == gone}
    left = without(program, own)

    def renumbered(prompt: int | None) -> int | None:
        return prompt if prompt is None or prompt < gone else prompt - 1

    groups = tuple(
        tuple(p if p < gone else p - 1 for p in group if p != gone) for group in program.groups
    )
    return replace(
        left,
        prompts=tuple(text for index, text in enumerate(left.prompts) if index != gone),
        operations=tuple(replace(one, prompt=renumbered(one.prompt)) for one in left.operations),
        traces=tuple(filter(None, groups)) if program.traces else (),
    )


def alone(program: Program, kept: int = 0) -> Program:
    """One prompt, one step, and all that is done there."""
    for prompt in reversed(range(len(program.prompts))):
        if prompt != kept:
            program = without_prompt(program, prompt)
    return _with_steps(replace(program, traces=()), 1)


def _with_steps(program: Program, steps: int) -> Program:
    late = {
        index
        for index, one in enumerate(program.operations)
        if one.step is not None and one.step >= steps
    }
    left = without(program, late)
    fewer = tuple(replace(one, step=None if steps == 1 else one.step) for one in left.operations)
    return replace(left, operations=fewer, steps=steps)


def _tidied(program: Program) -> Program:
    """With one prompt, every prompt is that one; with one trace, it needs no saying."""
    operations = program.operations
    if len(program.prompts) == 1 and not any(one.do is Do.STOP for one in operations):
        operations = tuple(replace(one, prompt=None) for one in operations)
    traces = program.traces if len(program.groups) > 1 else ()
    return replace(program, operations=operations, traces=traces)
