"""Rules for valid programs: values flow forward in the order of execution."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.errors import ConformanceError
from conformance.spec.programs.operations import Do, ModelPart, Operation, Program, Tokens

#: Parts that can be read but not written.
READ_ONLY = (ModelPart.INPUT, ModelPart.TOKEN)


def complaints(program: Program) -> Iterator[str]:
    """Yield what is wrong with a program; nothing if it is valid."""
    if not program.prompts:
        yield "there is no prompt"
    every = list(range(len(program.prompts)))
    if sorted(index for group in program.groups for index in group) != every:
        yield "the traces do not hold every prompt once"
        return
    if program.steps < 1:
        yield "there is no step"
    stopped = {op.prompt for op in program.operations if op.do is Do.STOP}
    seen = any((op.do.reads and op.saved) or op.do.writes for op in program.operations)
    if stopped >= set(every) and not seen:
        yield "every trace is stopped before anything is observed"
    for index, operation in enumerate(program.operations):
        for words in _operation(program, operation):
            yield f"operation {index} ({operation.do} at {operation.part}): {words}"


def check(program: Program) -> Program:
    """Return the program. Raises ConformanceError if it is invalid."""
    for words in complaints(program):
        raise ConformanceError(f"this is no program: {words}", remedy="see docs/programs.md")
    return program


def valid(program: Program) -> bool:
    return not any(True for _ in complaints(program))


def source_of(program: Program, taker: Operation, prompt: int, step: int) -> tuple[int, int]:
    """Return the prompt and step whose value is used at these."""
    assert taker.value is not None  # noqa: S101 - the caller has looked
    giver = program.operations[taker.value]
    return (
        prompt if giver.prompt is None else giver.prompt,
        step if giver.step is None else giver.step,
    )


def _operation(program: Program, operation: Operation) -> Iterator[str]:
    yield from _place(program, operation)
    if operation.do is Do.STOP:
        yield from _stop(program, operation)
    if operation.do is Do.SKIP:
        yield from _skip(program, operation)
    if operation.value is None:
        if operation.do in (Do.DIFFERENCE, Do.PRODUCT):
            yield "it takes nothing"
        return
    if not operation.do.takes:
        yield "it takes no value"
    elif not 0 <= operation.value < len(program.operations):
        yield f"there is no operation {operation.value}"
    elif not program.operations[operation.value].do.reads:
        yield f"operation {operation.value} reads nothing"
    else:
        yield from _flow(program, operation)


def _place(program: Program, operation: Operation) -> Iterator[str]:
    if operation.part.layered is not (operation.layer is not None):
        yield "it names a layer" if operation.layer is not None else "it names no layer"
    if operation.layer is not None and operation.layer < 0:
        yield "layers count from 0"
    if (operation.part is ModelPart.TOKEN) is not (operation.do is Do.FORCE):
        yield "an id can be forced, and nothing else can be"
    if operation.do.writes and operation.do is not Do.FORCE and operation.part in READ_ONLY:
        yield "this part is not written to"
    if operation.part is ModelPart.LOGITS:
        yield from _logits(operation)
    if operation.do is Do.FORCE and (operation.amount < 0 or operation.amount % 1):
        yield "the amount is no id"
    if operation.prompt is not None and not 0 <= operation.prompt < len(program.prompts):
        yield "there is no such prompt"
    if operation.step is not None and not 0 <= operation.step < program.steps:
        yield "there is no such step"


def _logits(operation: Operation) -> Iterator[str]:
    """Check an operation on the logits: one row, as wide as the vocabulary, that chooses the id."""
    if operation.tokens is not Tokens.ALL:
        yield "there are the last token's logits alone"
    if operation.do in (Do.ZERO, Do.PROJECT, Do.STOP) or operation.amount == 0:
        yield "no id could be chosen by what is left"
    if operation.do.takes and operation.value is None:
        yield "a fixed direction is as wide as the stream"


def _stop(program: Program, operation: Operation) -> Iterator[str]:
    """Check a stop: its trace has one prompt and one step, and nothing comes after it."""
    group = next((group for group in program.groups if operation.prompt in group), ())
    if operation.prompt is None or len(group) != 1 or program.steps != 1:
        yield "only a trace of one prompt and one step is stopped"
        return
    last = _moment(program, operation)
    for index, later in enumerate(program.operations):
        shared = operation.prompt in program.prompts_of(later)
        if later is not operation and shared and _moment(program, later, index) > last:
            yield f"operation {index} comes after the end"


def _skip(program: Program, operation: Operation) -> Iterator[str]:
    """Check a skip: nothing acts inside the layer, and later steps lack nothing."""
    if operation.part is not ModelPart.STREAM:
        yield "a layer is left out: its part is the stream"
    if operation.step is not None and program.steps > 1:
        yield "a layer is left out in every step, or in none"
    # An nnsight rule: the prompts of a trace share a forward pass.
    if operation.prompt is not None and (operation.prompt,) not in program.groups:
        yield "a layer is left out for every prompt of a trace, or for none"
    inside = (ModelPart.ATTENTION_INPUT, ModelPart.ATTENTION, ModelPart.MLP_INPUT, ModelPart.MLP)
    for index, beside in enumerate(program.operations):
        together = set(program.prompts_of(beside)) & set(program.prompts_of(operation))
        if together and beside.layer == operation.layer and beside.part in inside:
            yield f"operation {index} is inside of the layer that is left out"
        if beside is not operation and beside.do is Do.SKIP and beside.layer == operation.layer:
            yield f"operation {index} leaves it out as well"


def _flow(program: Program, taker: Operation) -> Iterator[str]:
    """Check that the value was read before, wherever it is used, and that its rows fit."""
    assert taker.value is not None  # noqa: S101 - the caller has looked
    giver = program.operations[taker.value]
    trace = {prompt: at for at, group in enumerate(program.groups) for prompt in group}
    steps = range(program.steps) if taker.step is None else (taker.step,)
    for prompt in program.prompts_of(taker):
        for step in steps:
            source, then = source_of(program, taker, prompt, step)
            if source != prompt and trace[source] >= trace[prompt]:
                yield f"prompt {source} is not in an earlier trace than prompt {prompt}"
                return
            if source == prompt and then > step:
                yield f"at step {step} it takes what is read at step {then}"
                return
            before = _moment(program, giver, taker.value)
            if (source, then) == (prompt, step) and before >= _moment(program, taker):
                yield "it takes what is read after it"
                return
            if (giver.part is ModelPart.LOGITS) is not (taker.part is ModelPart.LOGITS):
                yield "logits and what is as wide as the stream do not fit each other"
                return
            same_rows = taker.tokens is Tokens.ALL and (source, then) == (prompt, step)
            same_rows |= taker.part is ModelPart.LOGITS
            if giver.tokens is Tokens.ALL and not same_rows:
                yield "all rows of one place do not fit another"
                return
    if taker.do is Do.PROJECT and giver.tokens is Tokens.ALL:
        yield "one row has a direction, several have not"


def _moment(
    program: Program, operation: Operation, index: int | None = None
) -> tuple[tuple[int, int], int]:
    """Return when an operation happens within a step: by its place, then program order."""
    if index is None:
        index = next(i for i, candidate in enumerate(program.operations) if candidate is operation)
    return operation.depth, index
