"""Results of a self-test: a row for each injected fault, the detection limits, the totals."""

from __future__ import annotations

from dataclasses import field
from enum import StrEnum

from conformance.spec.records.base import record
from conformance.spec.records.judged import Side
from conformance.spec.records.matrix import Precision
from conformance.spec.records.verdict import Verdict

SCHEMA = "conformance-selftest/1"
#: The file's name in the folder of the run that observed it.
FILE = "selftest.json"

#: In float32, faults of this share of a write's effect must be found, and faults of this share of a
#: row in values that are served without a write.
BAR = 1e-3
#: Faults of the effect at later layers must be found from this share of the stream, if that is
#: more: each layer rounds clean and edited runs separately, and small doses are barely above that.
OF_STREAM = 1e-4


class Ending(StrEnum):
    """The result of an injected fault."""

    CAUGHT = "caught"
    MISSED = "missed"
    BELOW = "below the bound"
    QUIET = "not flagged"
    ALARM = "flagged"
    ABSENT = "not expressible"


class Kind(StrEnum):
    """A fault whose smallest detectable dose is measured: of a write or of a served value."""

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
        """Return whether doses are shares of a write's effect; others are of a row's length."""
        return self not in (Kind.SERVED, Kind.SERVED_ROW)

    @property
    def later(self) -> bool:
        return self.startswith("later")

    @property
    def fault(self) -> Kind:
        """Return the fault without the place where it begins."""
        return Kind(self.removeprefix("later "))


@record()
class Limit:
    """The doses found in half and in 95 % of the trials of one cell.

    None if no dose up to `largest` was. `size` is the write's effect where it is first visible,
    `later` the required limit for faults of it at later layers, both as shares of the stream.
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
        """Return whether a bar applies. In bf16, baseline runs differ by more than any bar."""
        return self.precision is Precision.FLOAT32

    @property
    def holds(self) -> bool:
        return not self.asked or (self.most is not None and self.most <= self.bar)


@record()
class Row:
    """One injection. `inside`: it acts in the engine, nnsight or the relay, not behind the adapter.

    `size` is how far it moved the observations, in multiples of the smallest error that the clean
    cell would detect; None if nothing moved measurably. `right_*` is None if not applicable.
    `attribution` is the side found with correct columns in the run, `apart` without those of the
    same engine. Only bf16 can show a fault whose `precision` is bf16.
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
    precision: Precision = Precision.FLOAT32
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
    """`selftest.json`. `broken` are the bars that do not hold, in words."""

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
