"""Write a program as a scenario file: a straight-line nnsight trace, and its reference.

The trace is what a user would write: an `invoke` for each prompt, each access where the model runs
it. The file runs, is judged, stored and reported like any scenario, and `conformance repro` makes a
script of it.
"""

from __future__ import annotations

import pprint
from collections.abc import Iterator
from dataclasses import replace

from conformance.spec.programs.operations import Do, ModelPart, Operation, Program, Tokens, as_json
from conformance.spec.programs.validity import check, source_of

_WIDTH = 98

_HEAD = '''\
"""{words}"""

from conformance.spec import programs
from conformance import scenario

PROGRAM = programs.program(
{data}
)


@scenario(
    prompts=PROGRAM.prompts,
    steps=PROGRAM.steps,
    layers=programs.layers(PROGRAM),
    twin=PROGRAM.twin,
    needs=lambda _: PROGRAM.needs,
)
def {name}(lm, case):
'''

_FOOT = """\
    return programs.gathered(PROGRAM, [{seen}], active=case.active)


@{name}.reference
def _(model, case):
    return programs.meaning(PROGRAM, model, case)


@{name}.program
def _(layers, case):
    return PROGRAM
"""

_PLACES = {
    ModelPart.EMBEDDING: "lm.embedding.output",
    ModelPart.INPUT: "lm.layers[{layer}].input",
    ModelPart.ATTENTION_INPUT: "lm.layers[{layer}].attention.input",
    ModelPart.ATTENTION: "lm.layers[{layer}].attention.output",
    ModelPart.MLP_INPUT: "lm.layers[{layer}].mlp.input",
    ModelPart.MLP: "lm.layers[{layer}].mlp.output",
    ModelPart.STREAM: "lm.layers[{layer}].stream",
    ModelPart.NORM: "lm.norm.output",
    ModelPart.LOGITS: "lm.logits",
}
_ROWS = {Tokens.ALL: "", Tokens.FIRST: "[:1]", Tokens.LAST: "[-1:]"}
#: The docstring's words for an operation, and for its rows.
_DOES = {
    Do.READ: "read",
    Do.DIFFERENCE: "read, less {value},",
    Do.PRODUCT: "read, times {value},",
    Do.ADD: "add {amount} times {value} to",
    Do.SCALE: "multiply by {amount}",
    Do.ZERO: "set to zero",
    Do.REPLACE: "put {value} in the place of",
    Do.PROJECT: "take the direction of {value} out of",
}
_ROWS_IN_WORDS = {
    Tokens.ALL: "",
    Tokens.FIRST: "the first row of ",
    Tokens.LAST: "the last row of ",
}


def text(program: Program, name: str = "") -> str:
    """Return the file's text. `name` is the scenario's and the file's.

    Raises ConformanceError for an invalid program.
    """
    check(program)
    name = name or program.name
    data = pprint.pformat(as_json(program), width=_WIDTH - 4, sort_dicts=False)
    body = [line for group in program.groups for line in _trace(program, group)]
    names = ", ".join(f"seen_{prompt}" for prompt in range(len(program.prompts)))
    return "".join(
        [
            _HEAD.format(
                words=_describe(program).replace("\\", "\\\\").replace('"', "'"),
                data="\n".join(f"    {line}" for line in data.splitlines()),
                name=name,
            ),
            *(f"    {line}\n" for line in body),
            _FOOT.format(seen=names, name=name),
        ]
    )


def _trace(program: Program, group: tuple[int, ...]) -> Iterator[str]:
    steps = f"steps={program.steps}"
    stops = any(op.do is Do.STOP and op.prompt in group for op in program.operations)
    if len(group) == 1:
        tracer = " as tracer" if stops or program.steps > 1 else ""
        yield f"with lm.trace(case.prompts[{group[0]}], {steps}){tracer}:"
        yield from (f"    {line}" for line in _block(program, group[0]))
        return
    yield f"with lm.trace({steps}) as tracer:"
    for prompt in group:
        yield f"    with tracer.invoke(case.prompts[{prompt}]):"
        yield from (f"        {line}" for line in _block(program, prompt))


def _block(program: Program, prompt: int) -> Iterator[str]:
    """Yield the lines of a prompt's block: in every step, what is due there."""
    name = f"seen_{prompt}"
    yield f"{name} = {{}}.save()"
    operations = program.operations_on(prompt)
    many = program.steps > 1
    due = [(op.depth, index, _operation(program, op, index, prompt)) for index, op in operations]
    # A skipped layer's output is seen where the layer would have ended.
    due += [
        (replace(op, do=Do.READ).depth, index, _read_back(program, op, index, prompt))
        for index, op in operations
        if op.do is Do.SKIP
    ]
    lines: list[str] = []
    for _, index, emitted in sorted(due, key=lambda item: item[:2]):
        own, when = list(emitted), program.operations[index].step
        if many and when is not None and own:
            own = [f"if step == {when}:", *(f"    {line}" for line in own)]
        lines += own
    step = _step(program)
    if not any(op.do is Do.STOP for _, op in operations):
        lines.append(f'{name}["logits", {step}] = lm.logits')
        for _, operation in operations:
            if operation.part is ModelPart.TOKEN:
                at = "" if operation.step is None or not many else f" and step == {operation.step}"
                lines += [f"if case.active{at}:", f"    lm.force({int(operation.amount)})"]
        lines.append(f'{name}["token", {step}] = lm.token')
    if many:
        yield f"for step in tracer.iter[:{program.steps}]:"
        lines = [f"    {line}" for line in lines]
    yield from lines


def _operation(program: Program, operation: Operation, index: int, prompt: int) -> Iterator[str]:
    if operation.part is ModelPart.TOKEN:
        return
    place = _PLACES[operation.part].format(layer=operation.layer)
    if operation.do is Do.STOP:
        yield place
        yield "tracer.stop()"
        return
    if operation.do is Do.SKIP:
        yield "if case.active:"
        yield f"    lm.layers[{operation.layer}].skip()"
        return
    rows = _ROWS[operation.tokens]
    value = _value(program, operation, prompt)
    if operation.do.reads:
        how = {Do.READ: "", Do.DIFFERENCE: f" - {value}", Do.PRODUCT: f" * {value}"}
        name = f"read_{index}_{prompt}"
        yield f"{name} = {place}{rows}{how[operation.do]}"
        if operation.saved or _taken_elsewhere(program, index, prompt):
            yield f'seen_{prompt}["read", {index}, {_step(program)}] = {name}'
        return
    yield "if case.active:"
    yield f"    rows = {place}"
    yield from (f"    {line}" for line in _change(operation, rows or "[:]", value))
    yield f"    {place} = rows"
    yield from _read_back(program, operation, index, prompt)


def _read_back(program: Program, operation: Operation, index: int, prompt: int) -> Iterator[str]:
    """Yield a read of what was written; in the clean run, of what is there without it."""
    place = _PLACES[operation.part].format(layer=operation.layer)
    yield f'seen_{prompt}["written", {index}, {_step(program)}] = {place}'


def _step(program: Program) -> str:
    return "0" if program.steps == 1 else "step"


def _change(operation: Operation, rows: str, value: str) -> Iterator[str]:
    amount = f"{operation.amount:g}"
    match operation.do:
        case Do.ADD:
            yield f"rows{rows} = rows{rows} + {amount} * {value}"
        case Do.SCALE:
            yield f"rows{rows} = rows{rows} * {amount}"
        case Do.ZERO:
            yield f"rows{rows} = rows{rows} * 0"
        case Do.REPLACE:
            yield f"rows{rows} = {value}"
        case Do.PROJECT:
            yield f"row = {value}.reshape(-1)"
            yield "unit = row / row.norm().clamp_min(1e-12)"
            yield f"rows{rows} = rows{rows} - (rows{rows} @ unit)[:, None] * unit"


def _value(program: Program, operation: Operation, prompt: int) -> str:
    """Return the expression of an operation's value."""
    if operation.value is None:
        return f"lm.direction({operation.layer or 0}, seed={operation.seed})"
    source, then = source_of(program, operation, prompt, -1)
    if source == prompt:
        return f"read_{operation.value}_{prompt}"
    step = _step(program) if program.steps == 1 or then < 0 else str(then)
    return f'seen_{source}["read", {operation.value}, {step}]'


def _taken_elsewhere(program: Program, index: int, prompt: int) -> bool:
    """Return whether another prompt uses what this operation reads of this one."""
    return any(
        taker.value == index
        and program.operations[index].prompt == prompt
        and any(taking != prompt for taking in program.prompts_of(taker))
        for taker in program.operations
    )


def _describe(program: Program) -> str:
    """Describe in a few sentences what is run, and what is done there."""
    counts = ((len(program.prompts), "prompt"), (len(program.groups), "trace"))
    prompts, traces, steps = (
        f"{count} {noun}{'s' * (count > 1)}" for count, noun in (*counts, (program.steps, "step"))
    )
    lines = [f"Program: {prompts} in {traces}, {steps}."]
    for index, operation in enumerate(program.operations):
        where = "" if operation.prompt is None else f" of prompt {operation.prompt}"
        if operation.step is not None and program.steps > 1:
            where += f" in step {operation.step}"
        lines.append(f"\n{index}. {_describe_operation(operation)}{where}.")
    return "\n".join(lines)


def _describe_operation(operation: Operation) -> str:
    """Describe an operation: `add 0.5 times a fixed direction to the last row of stream 1`."""
    layer = "" if operation.layer is None else f" {operation.layer}"
    if operation.do is Do.SKIP:
        return f"leave out layer{layer}"
    if operation.do is Do.FORCE:
        return f"force the id {operation.amount:g}"
    if operation.do is Do.STOP:
        return f"stop after {operation.part}{layer}"
    value = "a fixed direction" if operation.value is None else f"({operation.value})"
    does = _DOES[operation.do].format(value=value, amount=f"{operation.amount:g}")
    return f"{does} {_ROWS_IN_WORDS[operation.tokens]}{operation.part}{layer}"
