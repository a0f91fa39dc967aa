"""The meaning of a program: its operations, applied by hooks on the plain reference.

It is independent of the generated trace (`conformance.spec.programs.source`), so a mistake in one
of the two shows on every column.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from conformance.spec.programs.operations import Do, Form, ModelPart, Operation, Program, Tokens
from conformance.spec.programs.validity import source_of
from conformance.spec.records import FORCED, GREEDY, Case

if TYPE_CHECKING:
    from torch import Tensor

    from conformance.spec.authoring import Reference, Visit

#: An operation by its index, at a prompt and a step.
Moment = tuple[int, int, int]

#: Returns the fixed random vector of a layer and a seed.
Direction = Callable[..., "Tensor"]

#: Removes a direction [width] from rows [tokens, width].
ProjectOut = Callable[["Tensor", "Tensor"], "Tensor"]

#: The outputs of a step: name in a scenario → name in a block's saved values.
_ENDS = {"logits": "logits", GREEDY: "token"}

_ROWS = {Tokens.ALL: slice(None), Tokens.FIRST: slice(0, 1), Tokens.LAST: slice(-1, None)}


def project_out(rows: Tensor, direction: Tensor) -> Tensor:
    """Remove the component along a direction [width] from rows [tokens, width], as a trace does."""
    return without(rows, unit(direction))


def unit(direction: Tensor) -> Tensor:
    """Return the unit vector along a direction; zeros stay zeros."""
    along: Tensor = direction / direction.norm().clamp_min(1e-12)
    return along


def without(rows: Tensor, along: Tensor) -> Tensor:
    """Remove the component along a unit vector [width] from rows [tokens, width]."""
    left: Tensor = rows - (rows @ along)[:, None] * along
    return left


def meaning(program: Program, model: Reference, case: Case) -> list[dict[str, Any]]:
    """Return the observations of every prompt, in the form of `gathered`."""
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
    """Run the reference on one prompt of a program."""
    text, steps = acts.program.prompts[acts.prompt], acts.program.steps
    # By index: two prompts may have equal text and other operations.
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
    """The operations of a program on one prompt, and the values seen at their places.

    The prompts of a program share `values`. `direction` returns the fixed vector of a layer and
    seed; `out` removes a direction from rows.
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
        operations = program.operations_on(prompt)
        self.operations = sorted(operations, key=lambda item: (item[1].depth, item[0]))
        self.stopped = any(op.do is Do.STOP for _, op in operations)

    def saved(self, logits: Sequence[Tensor], tokens: Sequence[Tensor]) -> dict[Any, Any]:
        """Return what `gathered` takes: the values seen, and these outputs of every step."""
        ended = 0 if self.stopped else self.program.steps
        values = self.values.items()
        return {
            **{("read", i, s): rows for (i, p, s), rows in values if p == self.prompt},
            **{("written", index, step): rows for (index, step), rows in self.written.items()},
            **{("logits", step): logits[step] for step in range(ended)},
            **{("token", step): tokens[step] for step in range(ended)},
        }

    def by_place(self) -> dict[tuple[str, int | None], list[tuple[int, Operation]]]:
        """Return the operations by place, in the order in which a forward pass reaches them."""
        by_place: dict[tuple[str, int | None], list[tuple[int, Operation]]] = {}
        where = sorted(
            self.operations, key=lambda item: (replace(item[1], do=Do.READ).depth, item[0])
        )
        for index, op in where:
            if op.part is not ModelPart.TOKEN:
                by_place.setdefault((op.part, op.layer), []).append((index, op))
        return by_place

    def visits(self) -> dict[tuple[str, int | None], Visit]:
        """Return the hook for each place of the program."""
        visits: dict[tuple[str, int | None], Visit] = {
            place: partial(self.act, members) for place, members in self.by_place().items()
        }
        skipped = {op.layer for _, op in self.operations if op.do is Do.SKIP}
        for layer in skipped if self.active else ():
            before, after = (ModelPart.INPUT.value, layer), (ModelPart.STREAM.value, layer)
            visits[before], visits[after] = _skip_layer(visits.get(before), visits.get(after))
        return visits

    def act(self, members: Sequence[tuple[int, Operation]], step: int, rows: Tensor) -> Tensor:
        """Apply these operations at a place and return the rows that continue."""
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


def _skip_layer(before: Visit | None, after: Visit | None) -> tuple[Visit, Visit]:
    """Return the visits, extended so that the layer's output is replaced by its input."""
    came_in: list[Tensor] = []

    def keep(step: int, rows: Tensor) -> Tensor:
        rows = before(step, rows) if before else rows
        came_in[:] = [rows.clone()]
        return rows

    def exchange(step: int, _: Tensor) -> Tensor:
        rows = came_in[0].clone()
        return after(step, rows) if after else rows

    return keep, exchange


def changed(
    operation: Operation, rows: Tensor, value: Any, out: ProjectOut = project_out
) -> Tensor:
    """Return the rows [tokens, width] after a write; `out` removes a direction from rows."""
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
    """Return the ids forced on a prompt, by step."""
    return {
        step: int(op.amount)
        for op in program.operations
        if op.do is Do.FORCE and prompt in program.prompts_of(op)
        for step in (range(program.steps) if op.step is None else (op.step,))
    }


def gathered(
    program: Program, by_prompt: Sequence[Mapping[tuple[Any, ...], Any]], *, active: bool = True
) -> list[dict[str, Any]]:
    """Return the observations of every prompt from what its block saved.

    Keys are (`logits` | `token`, step) and (`read` | `written`, operation, step), all optional. Ids
    are forced only in an `active` run.
    """
    names = observed_names(program)
    prompts: list[dict[str, Any]] = []
    for prompt, saved in enumerate(by_prompt):
        outputs: dict[str, list[Any]] = {}
        forced = forced_at(program, prompt) if active else {}
        for key, value in saved.items():
            step, layer = key[-1], None
            match key:
                case ("read", index, _) if program.operations[index].saved:
                    name, layer = names[index], program.operations[index].layer
                case ("written", index, _):
                    operation = program.operations[index]
                    # A number even if no layer has it: the logits come after.
                    late = operation.part in (ModelPart.NORM, ModelPart.LOGITS)
                    name = f"written_{index}"
                    layer = program.layers if late else operation.layer or 0
                case ("logits", _):
                    name = "logits"
                case ("token", _):
                    name = FORCED if step in forced else GREEDY
                case _:
                    continue
            steps = outputs.setdefault(name, [{} for _ in range(program.steps)])
            steps[step] = value if layer is None else {**steps[step], layer: value}
        prompts.append(outputs)
    return prompts


def observed(
    form: Form, by_prompt: Sequence[Mapping[tuple[Any, ...], Any]]
) -> list[dict[str, Any]]:
    """Like `gathered`, but under the scenario's names, and nothing else."""
    operations = form.program.operations

    def observations(saved: Mapping[tuple[Any, ...], Any]) -> dict[str, Any]:
        def steps(*key: Any) -> list[Any]:
            return [saved.get((*key, step), {}) for step in range(form.program.steps)]

        reads = {
            name: steps("read", source)
            if isinstance(source, int)
            else {operations[index].layer: steps("read", index) for index in source}
            for name, source in form.reads.items()
        }
        return reads | {name: steps(_ENDS[name]) for name in form.ends}

    return [observations(saved) for saved in by_prompt]


def observed_names(program: Program) -> dict[int, str]:
    """Name each reading operation's observation: by its part if that is unambiguous, as scenarios
    do, so that the judge recognizes the stream.
    """
    names: dict[int, str] = {}
    named_places: set[tuple[ModelPart, int | None]] = set()
    for index, operation in enumerate(program.operations):
        if not operation.do.reads:
            continue
        plain = (
            operation.do is Do.READ
            and operation.tokens is Tokens.ALL
            and operation.part is not ModelPart.LOGITS  # the name of a step's output
            and (operation.part, operation.layer) not in named_places
        )
        if plain:
            named_places.add((operation.part, operation.layer))
        names[index] = operation.part.value if plain else f"{operation.do}_{index}"
    return names
