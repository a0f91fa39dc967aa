"""Draw random programs, reproducibly by seed.

The draws are uniform. hypothesis prefers simple, similar examples, in which values hardly ever
flow; tests that use hypothesis draw from here too.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random

from conformance.spec.programs import Do, ModelPart, Operation, Program, Tokens, valid
from conformance.spec.programs.validity import READ_ONLY

#: Prompts of different content and length, one of a single word. They are few, so that each clean
#: run is computed once and then reused.
PROMPTS = (
    "The capital of France is",
    "A small boat drifted slowly past the old stone bridge while we were",
    "One",
    "In the winter of that year the river froze",
    "Three plus four equals",
    "She opened the letter, read it twice, and",
)
#: The numbers of prompts and steps of a program, weighted by repetition; the most operations.
COUNTS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 6)
STEPS = (1, 1, 1, 1, 1, 2, 2, 3, 3, 8)
MOST_OPERATIONS = 6
#: How often an operation that takes a value takes logits, if some were read.
TO_LOGITS = 0.3
AMOUNTS = (-1.0, 0.01, 0.25, 0.5, 1.0, 2.0)
#: Ids that every vocabulary has.
IDS = (20, 5, 90, 33)
#: The weight of each operation.
WEIGHTS = {
    Do.READ: 5,
    Do.DIFFERENCE: 2,
    Do.PRODUCT: 1,
    Do.ADD: 4,
    Do.SCALE: 2,
    Do.ZERO: 2,
    Do.REPLACE: 4,
    Do.PROJECT: 2,
    Do.SKIP: 1,
    Do.FORCE: 1,
    Do.STOP: 1,
}


@dataclass(frozen=True)
class ModelShape:
    """The model that programs are drawn for: its number of layers and its parts."""

    layers: int
    parts: tuple[str, ...]

    def places(self) -> list[ModelPart]:
        """Return the places that can be read."""
        return [
            part
            for part in ModelPart
            if part is not ModelPart.TOKEN and (not part.needs or part.needs in self.parts)
        ]


def draw(count: int, seed: int, shape: ModelShape) -> list[Program]:
    """Return `count` distinct programs."""
    chance = Random(seed)  # noqa: S311 - not for secrets
    programs: dict[str, Program] = {}
    while len(programs) < count:
        program = draw_program(chance, shape)
        programs.setdefault(program.name, program)
    return list(programs.values())


def draw_program(chance: Random, shape: ModelShape) -> Program:
    """Return one valid program for a model of this shape."""
    prompts = chance.choice(COUNTS)
    program = Program(
        tuple(chance.choice(PROMPTS) for _ in range(prompts)),
        steps=chance.choice(STEPS),
        traces=_traces(chance, prompts),
    )
    length = chance.randint(1, MOST_OPERATIONS)
    for _ in range(4 * length):  # some are invalid
        longer = replace(
            program, operations=(*program.operations, _operation(chance, program, shape))
        )
        program = longer if valid(longer) else program
        if len(program.operations) == length:
            break
    return program


def _traces(chance: Random, prompts: int) -> tuple[tuple[int, ...], ...]:
    """Return () for one trace of all prompts, or split the prompts into two traces."""
    cut = chance.randrange(prompts)
    if not cut or chance.random() < 0.5:
        return ()
    return tuple(range(cut)), tuple(range(cut, prompts))


def _operation(chance: Random, program: Program, shape: ModelShape) -> Operation:
    """Return another operation. The caller checks whether it fits the program."""
    [do] = chance.choices(list(WEIGHTS), list(WEIGHTS.values()))
    prompt = chance.choice([None, *range(len(program.prompts))])
    step = None if program.steps == 1 else chance.choice([None, *range(program.steps)])
    if do is Do.FORCE:
        return Operation(
            do, ModelPart.TOKEN, prompt=prompt, step=step, amount=float(chance.choice(IDS))
        )
    layer = chance.randrange(shape.layers)
    if do is Do.SKIP:
        return Operation(do, layer=layer, prompt=prompt)
    if do is Do.STOP:
        return Operation(do, layer=layer, prompt=chance.randrange(len(program.prompts)))
    places = [part for part in shape.places() if do.reads or part not in READ_ONLY]
    part = chance.choice(places)
    of_logits = (op for op in program.operations if op.part is ModelPart.LOGITS and op.do.reads)
    if do.takes and chance.random() < TO_LOGITS and any(of_logits):
        part = ModelPart.LOGITS  # logits are one place of many, and their values fit nowhere else
    operation = Operation(
        do,
        part,
        layer=layer if part.layered else None,
        tokens=Tokens.ALL if part is ModelPart.LOGITS else chance.choice(list(Tokens)),
        prompt=prompt,
        step=step,
        amount=chance.choice(AMOUNTS) if do in (Do.ADD, Do.SCALE) else 1.0,
    )
    if part is ModelPart.LOGITS:
        # Values that cancel would leave no logits to choose an id by.
        operation = replace(operation, amount=abs(operation.amount))
        if do is Do.DIFFERENCE:
            operation = replace(operation, do=Do.PRODUCT)
    return _taking(chance, operation, program, shape) if do.takes else operation


def _taking(chance: Random, operation: Operation, program: Program, shape: ModelShape) -> Operation:
    """Give the operation a value: what an earlier one reads, or a fixed direction."""
    logits = operation.part is ModelPart.LOGITS
    givers = [
        index
        for index, giver in enumerate(program.operations)
        if giver.do.reads and (giver.part is ModelPart.LOGITS) is logits
    ]
    if not givers or (operation.do.writes and chance.random() < 0.3):
        return replace(operation, seed=chance.randrange(3))
    value = chance.choice(givers)
    giver = program.operations[value]
    # A value fits only where it was read.
    if giver.tokens is Tokens.ALL and not logits:
        operation = replace(operation, tokens=Tokens.ALL, prompt=giver.prompt, step=giver.step)
    elif giver.step is not None:
        operation = replace(operation, step=chance.randrange(giver.step, program.steps))
    if len(program.groups) == 1:
        operation = replace(operation, prompt=giver.prompt)
    if operation.layer is not None:  # in most cases a later layer
        operation = replace(operation, layer=chance.randrange(giver.layer or 0, shape.layers))
    return replace(operation, value=value)
