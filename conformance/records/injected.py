"""What a self-test says: a row for each injected fault, the detection limits, the totals."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from conformance.records.base import record
from conformance.records.judged import Side
from conformance.records.matrix import Precision
from conformance.records.verdict import Verdict

SCHEMA = "conformance-selftest/1"
#: In the folder of the run that observed it.
FILE = "selftest.json"

#: In float32 every write must be held to this share of its effect, and every value that is served
#: where nothing is written to this share of its rows.
BAR = 1e-3
#: What befalls the effect later, to this share of the stream where that is more: each layer rounds
#: the clean and the edited run by itself, and small doses have effects not far above that.
OF_STREAM = 1e-4


class Ending(StrEnum):
    """What became of an injected fault."""

    CAUGHT = "caught"
    MISSED = "missed"
    BELOW = "below the bound"
    QUIET = "not flagged"
    ALARM = "flagged"
    ABSENT = "not expressible"


class Kind(StrEnum):
    """What is done to a write, or where nothing is written to what is served, to see how small it
    may be and still be found.
    """

    GAIN = "gain"
    OFF_AXIS = "off-axis"
    LEAK = "leak"
    LATER_GAIN = "later gain"
    LATER_OFF_AXIS = "later off-axis"
    LATER_LEAK = "later leak"
    SERVED = "served"
    SERVED_ROW = "one row served"

    @property
    def of_write(self) -> bool:
        """Its doses are shares of a write's effect; those of the others, of a row's length."""
        return self not in (Kind.SERVED, Kind.SERVED_ROW)

    @property
    def later(self) -> bool:
        return self.startswith("later")

    @property
    def fault(self) -> Kind:
        """What is done, wherever it begins."""
        return Kind(self.removeprefix("later "))


@record()
class Limit:
    """The doses found in half and in 95 % of the trials of one cell; None where none was, up to the
    `largest` that was tried. `size` is the write's effect where it is first seen, and `later` what
    must be seen of what befalls it at later layers, both as shares of the stream.
    """

    model: str
    backend: str
    scenario: str
    case: str
    precision: Precision
    kind: Kind
    trials: int
    half: float | None
    most: float | None
    size: float
    later: float = OF_STREAM
    largest: float = 1.0

    @property
    def bar(self) -> float:
        return max(BAR, self.later / self.size) if self.kind.later else BAR

    @property
    def asked(self) -> bool:
        """Whether a bar is held. In bf16 honest runs differ by more than any bar would allow."""
        return self.precision is Precision.FLOAT32

    @property
    def holds(self) -> bool:
        return not self.asked or (self.most is not None and self.most <= self.bar)


@record()
class Row:
    """One injection. `size` is how far it moved what was observed, in multiples of the
    smallest error that the honest cell says would be found; None where nothing moved by a
    measurable amount. `right_*` is None where it is not asked. `attribution` is who is blamed
    beside honest columns, `apart` where none of the same engine stands beside the faulty ones.
    `inside` says that it acts in the engine, in nnsight or in the relay, not behind the adapter.
    """

    fault: str
    side: Side
    variant: str
    model: str
    backend: str
    scenario: str
    case: str
    dose: float
    place: str
    ending: Ending
    verdict: Verdict
    expected: tuple[Verdict, ...]
    right_verdict: bool
    diagnosis: str = ""
    says: tuple[str, ...] = ()
    right_diagnosis: bool | None = None
    attribution: Side | None = None
    right_side: bool | None = None
    apart: Side | None = None
    right_apart: bool | None = None
    blame: str = ""
    inside: bool = False
    size: float | None = None
    reason: str = ""

    @property
    def id(self) -> str:
        return f"{self.scenario}[{self.model}-{self.backend}@{self.variant}-{self.case}]"


@record()
class Rate:
    """`count` of `total`, with its exact 95 % interval."""

    count: int
    total: int
    low: float
    high: float

    def __str__(self) -> str:
        if not self.total:
            return "none"
        share = self.count / self.total
        return f"{self.count} of {self.total} ({share:.1%}, {self.low:.1%} to {self.high:.1%})"


@record()
class Alarm:
    """A cell without a fault that did not pass."""

    id: str
    verdict: Verdict
    reason: str


@record()
class Totals:
    detected: Rate
    diagnosed: Rate
    alarms: Rate
    sides: dict[Side, Rate] = field(default_factory=dict)
    blamed: Rate = Rate(0, 0, 0.0, 1.0)
    apart: Rate = Rate(0, 0, 0.0, 1.0)
    inside: Rate = Rate(0, 0, 0.0, 1.0)
    below: int = 0
    absent: int = 0


@record()
class SelfTest:
    """`selftest.json`, whole. `broken` are the bars that do not hold, in words."""

    schema: str
    run: str
    date: str
    quick: bool
    thresholds: str
    rows: tuple[Row, ...]
    alarms: tuple[Alarm, ...]
    totals: Totals
    broken: tuple[str, ...]
    seconds: float = 0.0
    harness: tuple[str, ...] = ()
    limits: tuple[Limit, ...] = ()
