"""Data types of a program: prompts, steps, and operations at places. Convertible to JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum
from typing import Annotated

from pydantic import Field

from conformance.spec.records import digest, record
from conformance.spec.records.base import adapter


class ModelPart(StrEnum):
    """The place of an operation: a part of the model, in the order of a forward pass."""

    EMBEDDING = "embedding"
    INPUT = "input"
    ATTENTION_INPUT = "attention_input"
    ATTENTION = "attention"
    MLP_INPUT = "mlp_input"
    MLP = "mlp"
    STREAM = "stream"
    NORM = "norm"
    LOGITS = "logits"  # of the last token: they choose the id
    TOKEN = "token"  # noqa: S105 - the id that a step generates

    @property
    def layered(self) -> bool:
        """Return whether every layer has one."""
        return self not in (ModelPart.EMBEDDING, ModelPart.NORM, ModelPart.LOGITS, ModelPart.TOKEN)

    @property
    def needs(self) -> str:
        """Return the part of a model it belongs to, as scenarios name it; "" for a layer's own."""
        name = self.removesuffix("_input")
        ends = (ModelPart.LOGITS, ModelPart.TOKEN)
        return "" if self in (ModelPart.INPUT, ModelPart.STREAM, *ends) else name


class Do(StrEnum):
    """What an operation does with the rows at its place; v is its value.

    Reads give a value that later operations may take: `read` the rows, `difference` the rows minus
    v, `product` the rows times v. Writes: `add` amount · v, `scale` by the amount, `zero`,
    `replace` by v, `project` out the direction of v; `skip` omits a layer, `force` continues the
    generation with the id `amount`. `stop` ends the trace after its place.
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
        """Return whether the rows of its place are seen, either read or read back after a write."""
        return self not in (Do.SKIP, Do.FORCE, Do.STOP)

    @property
    def takes(self) -> bool:
        """Return whether it has a value."""
        return self in (Do.DIFFERENCE, Do.PRODUCT, Do.ADD, Do.REPLACE, Do.PROJECT)


class Tokens(StrEnum):
    """Which rows of its place an operation reads or writes."""

    ALL = "all"
    FIRST = "first"
    LAST = "last"


@record()
class Operation:
    """One operation. `prompt` and `step` None mean all of them.

    `value` is the index of the reading operation that supplies the value; None is the fixed random
    direction of `layer` and `seed`, about as long as the stream. A read that is not `saved` only
    supplies others.
    """

    do: Do
    part: ModelPart = ModelPart.STREAM
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
        """Return the position in a forward pass: embeddings first, then layers from 1.

        A skip comes after the layer's input, which cannot be read afterwards.
        """
        order_of_parts = tuple(ModelPart)
        order = 2 * order_of_parts.index(self.part)
        if self.do is Do.SKIP:
            order = 2 * order_of_parts.index(ModelPart.INPUT) + 1
        layer = len(order_of_parts) if self.layer is None else self.layer + 1
        if self.part is ModelPart.EMBEDDING:
            return 0, order
        return (1 << 30, order) if not self.part.layered else (layer, order)


@record()
class Program:
    """Operations on prompts. Prompts of one of the `traces` (default: all) run in one trace.

    A later trace may use what an earlier one read. Every step's logits and id are observed too, and
    every write is read back.
    """

    prompts: tuple[str, ...]
    operations: tuple[Operation, ...] = ()
    steps: Annotated[int, Field(ge=1, le=64)] = 1
    traces: tuple[tuple[int, ...], ...] = field(default=())

    @property
    def groups(self) -> tuple[tuple[int, ...], ...]:
        """Return the prompts of each trace."""
        return self.traces or (tuple(range(len(self.prompts))),)

    def prompts_of(self, operation: Operation) -> range:
        """Return the prompts that an operation acts on."""
        at = operation.prompt
        return range(len(self.prompts)) if at is None else range(at, at + 1)

    def operations_on(self, prompt: int) -> list[tuple[int, Operation]]:
        """Return the operations on a prompt, each with its index."""
        every = enumerate(self.operations)
        return [(index, op) for index, op in every if prompt in self.prompts_of(op)]

    @property
    def twin(self) -> bool:
        """Return whether it has a clean run too; forced ids need none."""
        return any(op.do.writes and op.do is not Do.FORCE for op in self.operations)

    @property
    def layers(self) -> int:
        """Return how many layers a model must have."""
        return 1 + max((op.layer for op in self.operations if op.layer is not None), default=-1)

    @property
    def needs(self) -> tuple[str, ...]:
        """Return the parts that a model must have, as `@scenario(needs=…)` names them."""
        return tuple(sorted({op.part.needs for op in self.operations} - {""}))

    @property
    def name(self) -> str:
        """Return a unique name of the program that Python can import."""
        return f"program_{digest(as_json(self))}"


@record()
class Form:
    """A scenario's case as a program, so that libraries without nnsight can run it.

    `reads` maps each of the scenario's observations to its reading operation: its index, or several
    if the observation has a value for each of their layers. `ends` are the outputs ("logits",
    "tokens") that the scenario observes.
    """

    program: Program
    reads: Mapping[str, int | tuple[int, ...]] = field(default_factory=dict)
    ends: tuple[str, ...] = ()


def as_json(program: Program) -> dict[str, object]:
    """Convert to JSON-compatible data, without default values."""
    plain: dict[str, object] = adapter(Program).dump_python(
        program, mode="json", exclude_defaults=True
    )
    return plain


def from_plain(plain: object) -> Program:
    """Parse a mapping. Raises pydantic.ValidationError if it is not a program."""
    return adapter(Program).validate_python(plain)
