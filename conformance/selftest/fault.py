"""What a fault is: where it acts, whom it belongs to, where it must be caught and as what.

Nothing here knows an engine. A fault's `act` is a plain function on what passes its hook
point; `conformance.selftest.injecting.hooks` puts the points into a worker's processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from conformance.errors import ConformanceError
from conformance.records import Precision, Side, Verdict
from conformance.scenario import position

ALL = ("hf", "vllm-pp1", "vllm-pp2")
VLLM = ("vllm-pp1", "vllm-pp2")
STAGES = ("vllm-pp2",)
#: The engines that clients send traces to, several of which are under way at once.
CLIENTS = ("vllm-async", "vllm-serve")

#: Separates a case's or a column's name from the variant that is injected there.
MARK = "@"


class Point(StrEnum):
    """Where a fault acts, and what its `act` is given besides the `Moment`."""

    SERVED = "served"  # the stream in what nnsight hands to a block → what the block is handed
    TAKEN = "taken"  # the stream in what it takes from one → what is written, SKIPPED or Raw
    ARGUMENTS = "arguments"  # a layer's (positional, named) arguments, as nnsight hands them out
    READ = "read"  # what `lm.layers[i].stream` gives → what the block sees
    WRITE = "write"  # what is assigned to it → what is written, SKIPPED or Raw
    INPUT = "input"  # what `lm.layers[i].input` gives
    PART = "part"  # what a branch, the embeddings or the final norm take or give
    HELD = "held"  # what one of an attention's four parts holds: query, key, value or heads
    GIVEN = "given"  # what is assigned to a part's input → what is written, or SKIPPED
    LIVE = "live"  # what a branch gives, in the model's own memory
    SKIP = "skip"  # what is to stand for a layer that is left out, or SKIPPED
    LENS = "lens"  # what `lm.lens` gives
    STOP = "stop"  # `tracer.stop` is called: whether it is to act
    CLEAR = "clear"  # registered blocks are cleared: whether they are to be
    FORCE = "force"  # the id that a generation is to go on with, or SKIPPED
    RESULT = "result"  # the ids in `tracer.result`
    EXTRACTED = "extracted"  # a layer's rows as the engine itself handed them out
    SPAN = "span"  # where a request's rows begin in a batch → where nnsight takes them from
    COLLECTED = "collected"  # by request, what nnsight collected in a process → what it sends home
    PATH = "path"  # where a block looks for the layers
    LOGITS = "logits"  # the last row of the logits that nnsight hands to a block
    CHOSEN = "chosen"  # the id that nnsight hands to a block
    CHOICE = "choice"  # what `lm.token` gives
    ASKED = "asked"  # how `lm.trace` asks for a generation: its keyword arguments
    RETURNED = "returned"  # all observations of a case by site → those that are kept
    PROMPT_IDS = "prompt ids"  # the ids that the tokenizer made of the prompts
    FORWARD = "forward"  # the real model in one process → hooks that are removed afterwards
    RECORD = "record"  # what a stage noted of a value it served → what it sends, or None
    REPLAY = "replay"  # what another stage saw → what is replayed here, or None
    CASE = "case"  # a case is about to run
    LOAD = "load"  # the engine is about to be opened
    CHECKPOINT = "checkpoint"  # the weights by name → those that are loaded
    NOWHERE = "nowhere"  # nothing is changed, or the engine is only opened otherwise


#: What acts in the engine's own forward, weights or process, in nnsight or in the relay. The others
#: act on what the harness's adapter has already read, or is about to write.
INSIDE = frozenset(
    {
        Point.SERVED,
        Point.TAKEN,
        Point.ARGUMENTS,
        Point.LOGITS,
        Point.CHOSEN,
        Point.FORWARD,
        Point.CHECKPOINT,
        Point.RECORD,
        Point.REPLAY,
        Point.CASE,
        Point.LOAD,
        Point.STOP,
        Point.SKIP,
        Point.SPAN,
        Point.COLLECTED,
    }
)


#: What is passed only where a block runs: such a fault is in nothing that an engine does by itself.
WITH_A_BLOCK = frozenset(
    {
        Point.SERVED,
        Point.TAKEN,
        Point.ARGUMENTS,
        Point.READ,
        Point.WRITE,
        Point.INPUT,
        Point.PART,
        Point.HELD,
        Point.GIVEN,
        Point.LIVE,
        Point.SKIP,
        Point.LENS,
        Point.STOP,
        Point.CLEAR,
        Point.FORCE,
        Point.RESULT,
        Point.LOGITS,
        Point.CHOSEN,
        Point.CHOICE,
        Point.RETURNED,
        Point.SPAN,
        Point.COLLECTED,
    }
)


class Inexpressible(Exception):
    """This fault has no meaning on this engine or layout; in words why."""


class Skipped:
    """A write that does not happen."""


SKIPPED = Skipped()


@dataclass(frozen=True)
class Raw:
    """A layer's whole output, to be put in place as it is."""

    output: Any


@dataclass
class Moment:
    """What an action may know: where it is to act, where and in which process it is called.

    `at` is the layer the variant names (None: everywhere), `layer` the one at hand. `raw`
    gives the layer's output as the engine made it. `memory` lasts as long as the case, `written`
    are the layers whose stream a block has written since it began.
    `noise` is the relative error of an honest run after each layer.
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
    """One fault. `summary` says in a sentence what it does, `met` where it was met outside of this
    project.

    `cases` must catch it, with one of `verdicts` and with one of the words of `says` in the
    diagnosis (none: no diagnosis is asked for). It is injected at each of `places` (a name
    of `conformance.scenario.position`, "" for everywhere) with each of `doses`. `silent`
    ones must not be flagged. `architectures` and `parts` are what a model must be and have.
    `alone` asks for an engine load of its own, `options` are then the engine's. It is injected
    in `precision`: in float32 but for what only bf16 can show. `by_bits` ones show by the bits of
    one stage alone, and not at all where several stages are not held to them. `models` are those
    that have it where nobody names models; () for all.
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
    precision: Precision = Precision.FLOAT32
    options: Mapping[str, Any] = field(default_factory=dict)

    def variants(self) -> tuple[Variant, ...]:
        return tuple(Variant(self, place, dose) for place in self.places for dose in self.doses)


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

    def at(self, layers: int) -> int | None:
        return position(self.place, layers) if self.place else None


def find(faults: Mapping[str, Fault], name: str) -> Variant:
    """The variant with this id. Raises ConformanceError when there is none."""
    for fault in faults.values():
        for variant in fault.variants():
            if variant.id == name:
                return variant
    raise ConformanceError(f"there is no fault {name!r}", remedy="see conformance.selftest.faults")
