"""What a program is: prompts, steps, and operations at places. Data, and JSON both ways."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from conformance.records import digest, record
from conformance.records.base import adapter


class Part(StrEnum):
    """Where an operation acts: a part of the model, in the order in which a forward meets them."""

    EMBEDDING = "embedding"
    INPUT = "input"
    ATTENTION_INPUT = "attention_input"
    ATTENTION = "attention"
    MLP_INPUT = "mlp_input"
    MLP = "mlp"
    STREAM = "stream"
    NORM = "norm"
    LOGITS = "logits"  # of the last token: what the id is chosen by
    TOKEN = "token"  # noqa: S105 - the id that a step generates

    @property
    def layered(self) -> bool:
        """Whether every layer has one."""
        return self not in (Part.EMBEDDING, Part.NORM, Part.LOGITS, Part.TOKEN)

    @property
    def needs(self) -> str:
        """The part of a model that it belongs to, as scenarios name it; "" for a layer's own."""
        name = self.removesuffix("_input")
        ends = (Part.LOGITS, Part.TOKEN)
        return "" if self in (Part.INPUT, Part.STREAM, *ends) else name


class Do(StrEnum):
    """What an operation does with the rows at its place; v is its value.

    Reads give a value that later operations may take: `read` the rows, `difference` the rows
    less v, `product` the rows times v. Writes: `add` amount · v, `scale` by the amount, `zero`,
    `replace` by v, `project` out the direction of v; `skip` leaves a layer out, `force` lets the
    generation go on with the id `amount`. `stop` ends the trace after its place.
    """

    READ = "read"
    DIFFERENCE = "difference"
    PRODUCT = "product"
    ADD = "add"
    SCALE = "scale"
    ZERO = "zero"
    REPLACE = "replace"
    PROJECT = "project"
    SKIP = "skip"
    FORCE = "force"
    STOP = "stop"

    @property
    def reads(self) -> bool:
        return self in (Do.READ, Do.DIFFERENCE, Do.PRODUCT)

    @property
    def writes(self) -> bool:
        return not self.reads and self is not Do.STOP

    @property
    def observes(self) -> bool:
        """Whether the rows of its place are seen, be they read or read back after a write."""
        return self not in (Do.SKIP, Do.FORCE, Do.STOP)

    @property
    def takes(self) -> bool:
        """Whether it has a value."""
        return self in (Do.DIFFERENCE, Do.PRODUCT, Do.ADD, Do.REPLACE, Do.PROJECT)


class Tokens(StrEnum):
    """Which rows of its place an operation is about."""

    ALL = "all"
    FIRST = "first"
    LAST = "last"


@record()
class Operation:
    """One operation. `prompt` and `step` None: each of them.

    `value` is the index of the reading operation whose value is taken; None takes the fixed
    random direction of `layer` and `seed`, which is about as long as the stream. A read that is
    not `saved` is only taken by others.
    """

    do: Do
    part: Part = Part.STREAM
    layer: int | None = None
    tokens: Tokens = Tokens.ALL
    prompt: int | None = None
    step: int | None = None
    value: int | None = None
    amount: float = 1.0
    seed: int = 0
    saved: bool = True

    @property
    def depth(self) -> tuple[int, int]:
        """Where a forward meets it: layers count from 1, the embeddings are before them. A layer is
        left out once its input has come, which can be read and not asked for afterwards.
        """
        order_of_parts = tuple(Part)
        order = 2 * order_of_parts.index(self.part)
        if self.do is Do.SKIP:
            order = 2 * order_of_parts.index(Part.INPUT) + 1
        layer = len(order_of_parts) if self.layer is None else self.layer + 1
        if self.part is Part.EMBEDDING:
            return 0, order
        return (1 << 30, order) if not self.part.layered else (layer, order)


@record()
class Program:
    """Operations on prompts. Prompts of one of the `traces` (none given: all of them) run in one
    trace; a later trace may take what an earlier one read. Every step's logits and id are
    observed besides what is read, and every write is read back.
    """

    prompts: tuple[str, ...]
    operations: tuple[Operation, ...] = ()
    steps: Annotated[int, Field(ge=1, le=64)] = 1
    traces: tuple[tuple[int, ...], ...] = field(default=())

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """The prompts of each trace."""
        return self.traces or (tuple(range(len(self.prompts))),)

    @property
    def twin(self) -> bool:
        """Whether it has a clean run beside: what is forced shows without one."""
        return any(op.do.writes and op.do is not Do.FORCE for op in self.operations)

    @property
    def layers(self) -> int:
        """How many layers a model must have."""
        return 1 + max((op.layer for op in self.operations if op.layer is not None), default=-1)

    @property
    def needs(self) -> tuple[str, ...]:
        """The parts that a model must have, as `@scenario(needs=…)` names them."""
        return tuple(sorted({op.part.needs for op in self.operations} - {""}))

    @property
    def name(self) -> str:
        """A name that is the program's alone, which Python can import."""
        return f"program_{digest(as_json(self))}"


@record()
class Form:
    """A scenario's case as a program, so that libraries which know no nnsight can run it.

    `reads` says which reading operation gives each of the scenario's observations: its index, or
    several where the observation has a value for each of their layers. `ends` are those of
    "logits" and "tokens" that the scenario observes.
    """

    program: Program
    reads: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    ends: tuple[str, ...] = ()


def as_json(program: Program) -> dict[str, object]:
    """What JSON holds of it, without what is as it is by default."""
    plain: dict[str, object] = adapter(Program).dump_python(
        program, mode="json", exclude_defaults=True
    )
    return plain


def from_plain(plain: object) -> Program:
    """The program of such a mapping. Raises pydantic.ValidationError for one that is none."""
    return adapter(Program).validate_python(plain)
