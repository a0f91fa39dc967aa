"""What a program means: its operations, applied where plain hooks of the reference pass.

Independent of the trace that is written of it (`conformance.programs.source`): a mistake in one of
the two shows on every column.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conformance.programs.records import Do, Operation, Part, Program, Tokens
from conformance.programs.validity import prompts_of, source_of
from conformance.records import GREEDY, SAMPLED, Case

if TYPE_CHECKING:
    from torch import Tensor

    from conformance.authoring import Reference, Visit

#: An operation by its index, at a prompt and a step.
Moment = tuple[int, int, int]

_ROWS = {Tokens.ALL: slice(None), Tokens.FIRST: slice(0, 1), Tokens.LAST: slice(-1, None)}


def meaning(program: Program, model: Reference, case: Case) -> list[dict[str, Any]]:
    """The observations of every prompt, as `gathered` gives them."""
    values: dict[Moment, Tensor] = {}
    by_prompt: list[dict[Any, Any]] = [{} for _ in program.prompts]
    for group in program.groups:
        for prompt in group:
            by_prompt[prompt] = _Prompt(program, model, prompt, values, active=case.active).run()
    return gathered(program, by_prompt)


class _Prompt:
    """One prompt of a program, run in the reference."""

    def __init__(
        self,
        program: Program,
        model: Reference,
        prompt: int,
        values: dict[Moment, Tensor],
        *,
        active: bool,
    ) -> None:
        self.program = program
        self.model = model
        self.prompt = prompt
        self.values = values
        self.active = active
        self.written: dict[tuple[int, int], Tensor] = {}
        operations = [
            (index, op)
            for index, op in enumerate(program.operations)
            if prompt in prompts_of(program, op)
        ]
        self.operations = sorted(operations, key=lambda item: (item[1].depth, item[0]))
        self.stopped = any(op.do is Do.STOP for _, op in operations)

    def run(self) -> dict[Any, Any]:
        text, steps = self.program.prompts[self.prompt], self.program.steps
        # By its number: two prompts may be the same text, with other operations.
        along = self.model.forced[self.prompt] if self.model.forced else ()
        forced = {
            step: int(op.amount)
            for _, op in self.operations
            if op.do is Do.FORCE and self.active
            for step in (range(steps) if op.step is None else (op.step,))
        }
        if self.active and any(op.do.writes for _, op in self.operations):
            visits = self._visits()
            run = self.model.run(text, steps=steps, held=along, at=visits, chosen=forced)
        else:
            run = self.model.run(text, steps=steps, held=along, parts=self.model.readable)
            for step in range(steps):
                parts = {**run.parts[step], "stream": run.stream[step]}
                for (part, layer), members in self._by_place().items():
                    self._act(members, step, parts[part] if layer is None else parts[part][layer])
        ended = 0 if self.stopped else steps
        return {
            **{("read", i, s): rows for (i, p, s), rows in self.values.items() if p == self.prompt},
            **{("written", index, step): rows for (index, step), rows in self.written.items()},
            **{("logits", step): run.logits[step] for step in range(ended)},
            **{("token", step): run.tokens[step] for step in range(ended)},
        }

    def _by_place(self) -> dict[tuple[str, int | None], list[tuple[int, Operation]]]:
        """The operations in the order in which a forward meets them."""
        by_place: dict[tuple[str, int | None], list[tuple[int, Operation]]] = {}
        where = sorted(
            self.operations, key=lambda item: (replace(item[1], do=Do.READ).depth, item[0])
        )
        for index, operation in where:
            if operation.part is not Part.TOKEN:
                by_place.setdefault((operation.part, operation.layer), []).append(
                    (index, operation)
                )
        return by_place

    def _visits(self) -> dict[tuple[str, int | None], Visit]:
        """What is to be done wherever a forward passes a place of the program."""
        visits: dict[tuple[str, int | None], Visit] = {
            place: _visit(self, members) for place, members in self._by_place().items()
        }
        for layer in {op.layer for _, op in self.operations if op.do is Do.SKIP}:
            before, after = (Part.INPUT.value, layer), (Part.STREAM.value, layer)
            came_in: list[Tensor] = []
            visits[before] = _keeping_input(visits.get(before), came_in)
            visits[after] = _instead(visits.get(after), came_in)
        return visits

    def _act(self, members: Sequence[tuple[int, Operation]], step: int, rows: Tensor) -> Tensor:
        """The rows that go on from a place after these operations."""
        for index, operation in members:
            if operation.step not in (None, step) or operation.do is Do.STOP:
                continue
            if operation.do.writes:
                if self.active and operation.do is not Do.SKIP:
                    rows = changed(operation, rows, self._value(operation, step))
                self.written[index, step] = rows.clone()
                continue
            own = rows[_ROWS[operation.tokens]].clone()
            if operation.do is Do.DIFFERENCE:
                own = own - self._value(operation, step)
            if operation.do is Do.PRODUCT:
                own = own * self._value(operation, step)
            self.values[index, self.prompt, step] = own
        return rows

    def _value(self, operation: Operation, step: int) -> Any:
        if not operation.do.takes:
            return None
        if operation.value is None:
            return self.model.direction(operation.layer or 0, seed=operation.seed)
        source, then = source_of(self.program, operation, self.prompt, step)
        return self.values[operation.value, source, then]


def _visit(prompt: _Prompt, members: Sequence[tuple[int, Operation]]) -> Visit:
    return lambda step, rows: prompt._act(members, step, rows)  # noqa: SLF001 - a part of it


def _keeping_input(visit: Visit | None, came_in: list[Tensor]) -> Visit:
    """The same, and what comes in is kept."""

    def keep(step: int, rows: Tensor) -> Tensor:
        rows = visit(step, rows) if visit else rows
        came_in[:] = [rows.clone()]
        return rows

    return keep


def _instead(visit: Visit | None, came_in: list[Tensor]) -> Visit:
    """The same on what came in: the layer itself does not count."""

    def exchange(step: int, _: Tensor) -> Tensor:
        rows = came_in[0].clone()
        return visit(step, rows) if visit else rows

    return exchange


def changed(operation: Operation, rows: Tensor, value: Any) -> Tensor:
    """The rows [tokens, width] after a write."""
    rows = rows.clone()
    which = _ROWS[operation.tokens]
    match operation.do:
        case Do.ADD:
            rows[which] += operation.amount * value
        case Do.SCALE:
            rows[which] *= operation.amount
        case Do.ZERO:
            rows[which] *= 0
        case Do.REPLACE:
            rows[which] = value
        case Do.PROJECT:
            row = value.reshape(-1)
            unit = row / row.norm().clamp_min(1e-12)
            rows[which] -= (rows[which] @ unit)[:, None] * unit
    return rows


def gathered(
    program: Program, by_prompt: Sequence[Mapping[tuple[Any, ...], Any]]
) -> list[dict[str, Any]]:
    """The observations of every prompt from what its block saved. Keys are `("logits", step)`,
    `("token", step)`, `("read", operation, step)` and `("written", operation, step)`; what is not
    there is left out.
    """
    names = observed_names(program)
    prompts: list[dict[str, Any]] = []
    for prompt, saved in enumerate(by_prompt):
        outputs: dict[str, Any] = {}

        def put(name: str, step: int, value: Any, into: dict[str, Any] = outputs) -> None:
            steps = into.setdefault(name, [{} for _ in range(program.steps)])
            if isinstance(value, dict):
                steps[step] = {**steps[step], **value}
            else:
                steps[step] = value

        forced = any(
            op.do is Do.FORCE and prompt in prompts_of(program, op) for op in program.operations
        )
        for key, value in saved.items():
            match key:
                case ("read", index, step) if program.operations[index].saved:
                    layer = program.operations[index].layer
                    put(names[index], step, value if layer is None else {layer: value})
                case ("written", index, step):
                    operation = program.operations[index]
                    # A number even where no layer has it: the logits come after.
                    layer = program.layers if operation.part is Part.NORM else operation.layer or 0
                    put(f"written_{index}", step, {layer: value})
                case ("logits", step):
                    put("logits", step, value)
                case ("token", step):
                    put(SAMPLED if forced else GREEDY, step, value)
        prompts.append(outputs)
    return prompts


def observed_names(program: Program) -> dict[int, str]:
    """What each reading operation's observation is called: by its part where that says all,
    as scenarios do, so that the judge knows the stream for what it is.
    """
    names: dict[int, str] = {}
    known: set[tuple[Part, int | None]] = set()
    for index, operation in enumerate(program.operations):
        if not operation.do.reads:
            continue
        whole = (
            operation.do is Do.READ
            and operation.tokens is Tokens.ALL
            and (operation.part, operation.layer) not in known
        )
        if whole:
            known.add((operation.part, operation.layer))
        names[index] = operation.part.value if whole else f"{operation.do}_{index}"
    return names
