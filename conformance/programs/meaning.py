"""What a program means: its operations, applied where plain hooks of the reference pass.

Independent of the trace that is written of it (`conformance.programs.source`): a mistake in one of
the two shows on every column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from conformance.programs.operations import Do, Form, Operation, Part, Program, Tokens
from conformance.programs.validity import prompts_of, source_of
from conformance.records import FORCED, GREEDY, Case

if TYPE_CHECKING:
    from torch import Tensor

    from conformance.authoring import Reference, Visit

#: An operation by its index, at a prompt and a step.
Moment = tuple[int, int, int]

#: Gives the fixed random vector of a layer and a seed.
Direction = Callable[..., "Tensor"]

#: Takes a direction [width] out of rows [tokens, width].
ProjectOut = Callable[["Tensor", "Tensor"], "Tensor"]

#: What a scenario calls the ends of a step, and how a block saves them.
_ENDS = {"logits": "logits", GREEDY: "token"}

_ROWS = {Tokens.ALL: slice(None), Tokens.FIRST: slice(0, 1), Tokens.LAST: slice(-1, None)}


def project_out(rows: Tensor, direction: Tensor) -> Tensor:
    """The rows [tokens, width] without their part along a direction [width], as a trace says it."""
    return without(rows, unit(direction))


def unit(direction: Tensor) -> Tensor:
    """A vector of length one along a direction; zeros stay what they are."""
    along: Tensor = direction / direction.norm().clamp_min(1e-12)
    return along


def without(rows: Tensor, along: Tensor) -> Tensor:
    """The rows [tokens, width] without their part along a vector of length one [width]."""
    left: Tensor = rows - (rows @ along)[:, None] * along
    return left


def meaning(program: Program, model: Reference, case: Case) -> list[dict[str, Any]]:
    """The observations of every prompt, as `gathered` gives them."""
    values: dict[Moment, Tensor] = {}
    by_prompt: list[dict[Any, Any]] = [{} for _ in program.prompts]
    for group in program.groups:
        for prompt in group:
            acts = Acts(
                program, prompt, values, model.direction, model.project_out, active=case.active
            )
            by_prompt[prompt] = _run(acts, model)
    return gathered(program, by_prompt, active=case.active)


def _run(acts: Acts, model: Reference) -> dict[Any, Any]:
    """What the reference gives for one prompt of a program."""
    text, steps = acts.program.prompts[acts.prompt], acts.program.steps
    # By its number: two prompts may be the same text, with other operations.
    along = model.forced[acts.prompt] if model.forced else ()
    forced = forced_at(acts.program, acts.prompt) if acts.active else {}
    if acts.active and any(op.do.writes for _, op in acts.operations):
        run = model.run(text, steps=steps, held=along, at=acts.visits(), chosen=forced)
    else:
        run = model.run(text, steps=steps, held=along, parts=model.readable)
        for step in range(steps):
            values = {**run.parts[step], "stream": run.stream[step], "logits": run.logits[step]}
            for (part, layer), members in acts.by_place().items():
                acts.act(members, step, values[part] if layer is None else values[part][layer])
    return acts.saved(run.logits, run.tokens)


class Acts:
    """What one prompt of a program does wherever a forward passes its places, and what it has
    seen there. `values` are shared by the prompts of a program; `direction` gives the fixed
    vector of a layer and a seed, `out` takes a direction out of rows.
    """

    def __init__(
        self,
        program: Program,
        prompt: int,
        values: dict[Moment, Tensor],
        direction: Direction,
        out: ProjectOut = project_out,
        *,
        active: bool,
    ) -> None:
        self.program = program
        self.prompt = prompt
        self.values = values
        self.direction = direction
        self.project_out = out
        self.active = active
        self.written: dict[tuple[int, int], Tensor] = {}
        operations = [
            (index, op)
            for index, op in enumerate(program.operations)
            if prompt in prompts_of(program, op)
        ]
        self.operations = sorted(operations, key=lambda item: (item[1].depth, item[0]))
        self.stopped = any(op.do is Do.STOP for _, op in operations)

    def saved(self, logits: Sequence[Tensor], tokens: Sequence[Tensor]) -> dict[Any, Any]:
        """What `gathered` takes: what was seen, and these ends of every step."""
        ended = 0 if self.stopped else self.program.steps
        values = self.values.items()
        return {
            **{("read", i, s): rows for (i, p, s), rows in values if p == self.prompt},
            **{("written", index, step): rows for (index, step), rows in self.written.items()},
            **{("logits", step): logits[step] for step in range(ended)},
            **{("token", step): tokens[step] for step in range(ended)},
        }

    def by_place(self) -> dict[tuple[str, int | None], list[tuple[int, Operation]]]:
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

    def visits(self) -> dict[tuple[str, int | None], Visit]:
        """What is to be done wherever a forward passes a place of the program."""
        visits: dict[tuple[str, int | None], Visit] = {
            place: _visit(self, members) for place, members in self.by_place().items()
        }
        skipped = {op.layer for _, op in self.operations if op.do is Do.SKIP}
        for layer in skipped if self.active else ():
            before, after = (Part.INPUT.value, layer), (Part.STREAM.value, layer)
            came_in: list[Tensor] = []
            visits[before] = _keeping_input(visits.get(before), came_in)
            visits[after] = _instead(visits.get(after), came_in)
        return visits

    def act(self, members: Sequence[tuple[int, Operation]], step: int, rows: Tensor) -> Tensor:
        """The rows that go on from a place after these operations."""
        for index, operation in members:
            if operation.step not in (None, step) or operation.do is Do.STOP:
                continue
            if operation.do.writes:
                if self.active and operation.do is not Do.SKIP:
                    rows = changed(operation, rows, self._value(operation, step), self.project_out)
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
            return self.direction(operation.layer or 0, seed=operation.seed)
        source, then = source_of(self.program, operation, self.prompt, step)
        return self.values[operation.value, source, then]


def _visit(acts: Acts, members: Sequence[tuple[int, Operation]]) -> Visit:
    return lambda step, rows: acts.act(members, step, rows)


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


def changed(
    operation: Operation, rows: Tensor, value: Any, out: ProjectOut = project_out
) -> Tensor:
    """The rows [tokens, width] after a write; `out` takes a direction out of rows."""
    rows = rows.clone()
    row_index = _ROWS[operation.tokens]
    match operation.do:
        case Do.ADD:
            rows[row_index] += operation.amount * value
        case Do.SCALE:
            rows[row_index] *= operation.amount
        case Do.ZERO:
            rows[row_index] *= 0
        case Do.REPLACE:
            rows[row_index] = value
        case Do.PROJECT:
            rows[row_index] = out(rows[row_index], value.reshape(-1))
    return rows


def forced_at(program: Program, prompt: int) -> dict[int, int]:
    """The ids that a prompt of a program goes on with, by the step in which they are laid down."""
    return {
        step: int(op.amount)
        for op in program.operations
        if op.do is Do.FORCE and prompt in prompts_of(program, op)
        for step in (range(program.steps) if op.step is None else (op.step,))
    }


def gathered(
    program: Program, by_prompt: Sequence[Mapping[tuple[Any, ...], Any]], *, active: bool = True
) -> list[dict[str, Any]]:
    """The observations of every prompt from what its block saved. Keys are `("logits", step)`,
    `("token", step)`, `("read", operation, step)` and `("written", operation, step)`; what is not
    there is left out. Ids are forced in a run that is `active` alone.
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

        forced = forced_at(program, prompt) if active else {}
        for key, value in saved.items():
            match key:
                case ("read", index, step) if program.operations[index].saved:
                    layer = program.operations[index].layer
                    put(names[index], step, value if layer is None else {layer: value})
                case ("written", index, step):
                    operation = program.operations[index]
                    # A number even where no layer has it: the logits come after.
                    late = operation.part in (Part.NORM, Part.LOGITS)
                    layer = program.layers if late else operation.layer or 0
                    put(f"written_{index}", step, {layer: value})
                case ("logits", step):
                    put("logits", step, value)
                case ("token", step):
                    put(FORCED if step in forced else GREEDY, step, value)
        prompts.append(outputs)
    return prompts


def observed(
    form: Form, by_prompt: Sequence[Mapping[tuple[Any, ...], Any]]
) -> list[dict[str, Any]]:
    """The same by the names that the scenario has, and nothing else."""
    steps, operations = range(form.program.steps), form.program.operations
    prompts: list[dict[str, Any]] = []
    for saved in by_prompt:
        outputs: dict[str, Any] = {}
        for name, source in form.reads.items():
            if isinstance(source, int):
                outputs[name] = _steps(saved, "read", source, steps=steps)
                continue
            outputs[name] = {
                operations[index].layer: _steps(saved, "read", index, steps=steps)
                for index in source
            }
        for name in form.ends:
            outputs[name] = _steps(saved, _ENDS[name], steps=steps)
        prompts.append(outputs)
    return prompts


def _steps(saved: Mapping[tuple[Any, ...], Any], *key: Any, steps: range) -> Any:
    """What was saved in each step; a step that saved nothing has nothing there."""
    return [saved.get((*key, step), {}) for step in steps]


def observed_names(program: Program) -> dict[int, str]:
    """What each reading operation's observation is called: by its part where that says all,
    as scenarios do, so that the judge knows the stream for what it is.
    """
    names: dict[int, str] = {}
    named_places: set[tuple[Part, int | None]] = set()
    for index, operation in enumerate(program.operations):
        if not operation.do.reads:
            continue
        plain = (
            operation.do is Do.READ
            and operation.tokens is Tokens.ALL
            and operation.part is not Part.LOGITS  # the name of a step's end
            and (operation.part, operation.layer) not in named_places
        )
        if plain:
            named_places.add((operation.part, operation.layer))
        names[index] = operation.part.value if plain else f"{operation.do}_{index}"
    return names
