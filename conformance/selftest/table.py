"""The self-test's table: a row for each fault, place, dose, scenario, backend and model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field
from enum import StrEnum

from conformance.records import Side, Verdict, record
from conformance.selftest.bounds import clopper_pearson
from conformance.selftest.sensitivity import Limit, broken

SCHEMA = "conformance-selftest/1"
#: In the folder of the run that observed it.
FILE = "selftest.json"


class Ending(StrEnum):
    """What became of an injected fault."""

    CAUGHT = "caught"
    MISSED = "missed"
    BELOW = "below the bound"
    QUIET = "not flagged"
    ALARM = "flagged"
    ABSENT = "not expressible"


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


def rate(count: int, total: int) -> Rate:
    low, high = clopper_pearson(count, total) if total else (0.0, 1.0)
    return Rate(count, total, low, high)


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


#: The bars of the issue: how many of the faults above the bound are caught with the right
#: verdict, how many wrong tensors are explained, and how many blamed on the right side.
DETECTED, DIAGNOSED, BLAMED = 0.98, 0.90, 0.97


def totals(rows: Sequence[Row], clean: int, alarms: int) -> Totals:
    above_bound = [row for row in rows if row.ending in {Ending.CAUGHT, Ending.MISSED}]
    right = [row for row in above_bound if row.ending is Ending.CAUGHT and row.right_verdict]
    diagnosable = [row for row in rows if row.right_diagnosis is not None]
    explained = [row for row in diagnosable if row.right_diagnosis]
    quiet = [row for row in rows if row.ending in {Ending.QUIET, Ending.ALARM}]
    flagged = alarms + sum(row.ending is Ending.ALARM for row in quiet)
    sides = {}
    for side in (Side.ENGINE, Side.NNSIGHT, Side.PIPELINE):
        own = [row for row in rows if row.side is side and row.right_side is not None]
        sides[side] = rate(sum(bool(row.right_side) for row in own), len(own))
    beside = [row.right_side for row in rows if row.right_side is not None]
    apart = [row.right_apart for row in rows if row.right_apart is not None]
    injected = [row for row in rows if row.ending is not Ending.ABSENT]
    return Totals(
        inside=rate(sum(row.inside for row in injected), len(injected)),
        blamed=rate(sum(beside), len(beside)),
        apart=rate(sum(apart), len(apart)),
        detected=rate(len(right), len(above_bound)),
        diagnosed=rate(len(explained), len(diagnosable)),
        alarms=rate(flagged, clean + len(quiet)),
        sides=sides,
        below=sum(row.ending is Ending.BELOW for row in rows),
        absent=sum(row.ending is Ending.ABSENT for row in rows),
    )


def bars(rows: Sequence[Row], totals: Totals, limits: Sequence[Limit] = ()) -> tuple[str, ...]:
    """Which bars do not hold. That a fault is never caught anywhere is one of its own: with
    many faults one whole gate could be blind within two per cent. Of the detection limits the
    worst is said.
    """
    complaints = []
    if totals.detected.count < DETECTED * totals.detected.total or not totals.detected.total:
        complaints.append(f"{DETECTED:.0%} caught with the right verdict: {totals.detected}")
    if totals.diagnosed.count < DIAGNOSED * totals.diagnosed.total:
        complaints.append(f"{DIAGNOSED:.0%} of the wrong tensors explained: {totals.diagnosed}")
    for where, blamed in (("", totals.blamed), (" without an honest column beside", totals.apart)):
        if blamed.count < BLAMED * blamed.total:
            complaints.append(f"{BLAMED:.0%} blamed on the right side{where}: {blamed}")
    if totals.alarms.count:
        complaints.append(f"no false alarm: {totals.alarms}")
    complaints += [f"{name} is never caught" for name in _never(rows)]
    complaints += broken(limits)[:1]
    return tuple(complaints)


def _never(rows: Sequence[Row]) -> list[str]:
    """Faults that were injected into a backend and not caught at any place and dose of any
    model, be it below the bound.
    """
    caught_by_name: dict[str, bool] = {}
    for row in rows:
        if row.ending in {Ending.CAUGHT, Ending.MISSED, Ending.BELOW}:
            name = f"{row.fault} on {row.backend}"
            caught = row.ending is Ending.CAUGHT and row.right_verdict
            caught_by_name[name] = caught_by_name.get(name, False) or caught
    return [name for name, caught in caught_by_name.items() if not caught]
