"""Declare faults: where a fault acts, who is responsible, which cells must catch it and how.

This module is independent of engines. A fault's `act` is a plain function of what passes its hook
point; `conformance.commands.selftest.injecting.hooks` installs the points in a worker's processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Self, TypeVar

from conformance.errors import ConformanceError
from conformance.spec.records import Precision, Side, Verdict
from conformance.spec.scenario import position

ALL = ("hf", "vllm-pp1", "vllm-pp2")
VLLM = ("vllm-pp1", "vllm-pp2")
STAGES = ("vllm-pp2",)
#: The engines to which clients send traces, several at the same time.
CLIENTS = ("vllm-async", "vllm-serve")

#: Separates the name of a case or column from the injected variant.
MARK = "@"
_IN, _BARE = 1, 2


class Point(StrEnum):
    """Where a fault acts, and the arguments of its `act` besides the `Moment`.

    `inside`: in the engine's forward, weights or process, nnsight or the relay. The others act on
    values that the harness's adapter has already read or is about to write. `without_block`: also
    passed where no block runs. A fault at any other leaves the engine intact.
    """

    inside: bool
    without_block: bool

    def __new__(cls, name: str, flags: int = 0) -> Self:
        point = str.__new__(cls, name)
        point._value_ = name
        point.inside, point.without_block = bool(flags & _IN), bool(flags & _BARE)
        return point

    SERVED = "served", _IN  # the stream that nnsight hands to a block → what the block receives
    TAKEN = "taken", _IN  # the stream from a block → what is written, SKIPPED or Raw
    ARGUMENTS = "arguments", _IN  # a layer's (positional, named) arguments for a block
    READ = "read"  # the value of `lm.layers[i].stream` → what the block sees
    INPUT = "input"  # the value of `lm.layers[i].input`
    PART = "part"  # the input or output of a branch, the embeddings or the final norm
    HELD = "held"  # one of an attention's four parts: query, key, value or heads
    GIVEN = "given"  # what is assigned to a part's input → what is written, or SKIPPED
    LIVE = "live"  # a branch's output, in the model's own memory
    SKIP = "skip", _IN  # the replacement for a skipped layer's output, or SKIPPED
    LENS = "lens"  # the result of `lm.lens`
    STOP = "stop", _IN  # `tracer.stop` is called → whether it acts
    CLEAR = "clear"  # registered blocks are cleared → whether they are
    FORCE = "force"  # the forced id of a generation, or SKIPPED
    RESULT = "result"  # the ids in `tracer.result`
    EXTRACTED = "extracted", _BARE  # a layer's rows as the engine itself returns them
    SPAN = "span", _IN  # where a request's rows begin in a batch → where they are taken
    COLLECTED = "collected", _IN  # what a process collected by request → what it sends
    PATH = "path", _BARE  # the path at which a block looks for the layers
    LOGITS = "logits", _IN  # the last row of the logits that nnsight hands to a block
    CHOSEN = "chosen", _IN  # the id that nnsight hands to a block
    CHOICE = "choice"  # the value of `lm.token`
    ASKED = "asked", _BARE  # the keyword arguments of `lm.trace`
    RETURNED = "returned"  # all observations of a case by `Site` → those that are kept
    PROMPT_IDS = "prompt ids", _BARE  # the ids that the tokenizer made of the prompts
    FORWARD = "forward", _IN | _BARE  # the model in one process → hooks to remove afterwards
    RECORD = "record", _IN | _BARE  # what a stage recorded → what it sends, or None
    REPLAY = "replay", _IN | _BARE  # what another stage saw → what is replayed here, or None
    CASE = "case", _IN | _BARE  # a case is about to run
    LOAD = "load", _IN | _BARE  # the engine is about to be opened
    LIBRARY = "library", _IN | _BARE  # the folder of a copy of nnsight, to change
    CHECKPOINT = "checkpoint", _IN | _BARE  # the weights by name → those that are loaded
    NOWHERE = "nowhere", _BARE  # nothing changes, or the engine opens with other options


#: The fields of a fault that hold several values.
_SEVERAL = (
    *("cases", "verdicts", "says", "places", "doses"),
    *("backends", "architectures", "models", "parts"),
)
Act = TypeVar("Act", bound=Callable[..., Any])


class Inexpressible(Exception):
    """The fault is impossible on this engine or layout; the message says why."""


class Skipped:
    """The result of a write that does not happen."""


SKIPPED = Skipped()


@dataclass(frozen=True)
class Raw:
    """A layer's whole output, to be put in place unchanged."""

    output: Any


@dataclass
class Moment:
    """The context of an action: where it must act, and where and in which process it is called.

    `at` is the variant's layer (None: everywhere), `layer` the current one. `raw` returns the
    layer's output as the engine made it. `memory` lasts as long as the case. `written` are the
    layers whose stream a block has written in this case. `noise` is the relative error of a
    baseline run after each layer.
    """

    at: int | None
    dose: float
    layer: int | None = None
    layers: int = 0
    stage: int = 0
    stages: int = 1
    raw: Callable[[], Any] = lambda: None
    noise: tuple[float, ...] = ()
    memory: dict[Any, Any] = field(default_factory=dict)
    written: set[int] = field(default_factory=set)

    @property
    def acts_here(self) -> bool:
        return self.at is None or self.at == self.layer


@dataclass(frozen=True)
class Fault:
    """One fault. `summary` says in a sentence what it does, `met` where it occurred outside of this
    project.

    `cases` must catch it, with one of `verdicts` and with one of the words of `says` in the
    diagnosis (empty: any diagnosis). It is injected at each of `places` (a name of
    `conformance.spec.scenario.position`, "" for everywhere) with each of `doses`. At a hook point
    of layers the act is called at the place alone; `everywhere` faults look at `Moment.at`
    themselves. `silent` faults must not be flagged. `architectures` and `parts` restrict the
    models. `alone` faults need their own engine load, with `options` for the engine. The fault is
    injected in `precision`: float32, unless only bf16 can show it. `by_bits` faults show only in a
    bitwise comparison with a single stage, and not if several stages need not match it. `models`
    get the fault if the user names no models; () for all.
    """

    id: str
    side: Side
    point: Point
    act: Callable[..., Any]
    cases: tuple[str, ...]
    verdicts: frozenset[Verdict]
    summary: str
    met: str = ""
    says: tuple[str, ...] = ()
    places: tuple[str, ...] = ("",)
    doses: tuple[float, ...] = (0.0,)
    backends: tuple[str, ...] = ALL
    architectures: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    silent: bool = False
    alone: bool = False
    short: bool = False
    quick: bool = False
    by_bits: bool = False
    everywhere: bool = False
    precision: Precision = Precision.FLOAT32
    options: Mapping[str, Any] = field(default_factory=dict)

    def variants(self) -> tuple[Variant, ...]:
        return tuple(Variant(self, place, dose) for place in self.places for dose in self.doses)


class FaultFamily:
    """Faults with common fields. A single value of a field stands for a tuple of one. `through` is
    the act of the whole family, if it has one: it first gets what its faults differ in.
    """

    def __init__(self, through: Callable[..., Any] | None = None, **common: Any) -> None:
        self.through = through
        self.common = common
        self.faults: list[Fault] = []

    def add(self, name: str, act: Callable[..., Any], summary: str, **own: Any) -> None:
        """Declare a fault with these fields besides the common ones."""
        given = {**self.common, **own}
        several = {
            key: given[key] if isinstance(given[key], tuple) else (given[key],)
            for key in _SEVERAL
            if key in given
        }
        several["verdicts"] = frozenset(several["verdicts"])
        act = partial(self.through, act) if self.through else act
        self.faults.append(Fault(id=name, act=act, summary=summary, **{**given, **several}))

    def fault(self, name: str, **own: Any) -> Callable[[Act], Act]:
        """Declare the decorated function as the act of a fault. Its docstring is the summary."""

        def declare(act: Act) -> Act:
            self.add(name, act, " ".join((act.__doc__ or "").split()), **own)
            return act

        return declare


@dataclass(frozen=True)
class Variant:
    """A fault at one place with one dose."""

    fault: Fault
    place: str = ""
    dose: float = 0.0

    @property
    def id(self) -> str:
        place = f".{self.place}" if self.place else ""
        dose = f"={self.dose:g}" if len(self.fault.doses) > 1 else ""
        return f"{self.fault.id}{place}{dose}"

    def moment(self, layers: int = 0, **more: Any) -> Moment:
        """Return the context of its actions in a model of so many layers."""
        at = position(self.place, layers) if self.place else None
        return Moment(at, self.dose, layers=layers, **more)


def find(faults: Mapping[str, Fault], name: str) -> Variant:
    """Return the variant with this id. Raises ConformanceError if there is none."""
    for fault in faults.values():
        for variant in fault.variants():
            if variant.id == name:
                return variant
    raise ConformanceError(
        f"there is no fault {name!r}", remedy="see conformance.commands.selftest.faults"
    )
