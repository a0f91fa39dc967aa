"""Description of a program in words, for the docstring of its file."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.programs.operations import Do, Operation, Program, Tokens

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
_ROWS = {Tokens.ALL: "", Tokens.FIRST: "the first row of ", Tokens.LAST: "the last row of "}


def meaning_in_words(program: Program) -> str:
    """Describe in a few sentences what is run, and what is done there."""
    prompts = len(program.prompts)
    run = f"{prompts} prompt{'s' * (prompts > 1)} in {len(program.groups)} "
    run += f"trace{'s' * (len(program.groups) > 1)}, {program.steps} "
    run += f"step{'s' * (program.steps > 1)}"
    return "\n".join([f"Program: {run}.", *(f"\n{line}" for line in _lines(program))])


def _lines(program: Program) -> Iterator[str]:
    for index, operation in enumerate(program.operations):
        yield f"{index}. {operation_in_words(operation)}{_where(program, operation)}."


def operation_in_words(operation: Operation) -> str:
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
    return f"{does} {_ROWS[operation.tokens]}{operation.part}{layer}"


def _where(program: Program, operation: Operation) -> str:
    prompt = "" if operation.prompt is None else f" of prompt {operation.prompt}"
    if operation.step is None or program.steps == 1:
        return prompt
    return f"{prompt} in step {operation.step}"
