"""The self-test's table: a row for each fault, place, dose, scenario, backend and model."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from conformance.commands.selftest.sensitivity import broken
from conformance.spec.records import Side
from conformance.spec.records.injected import Ending, Limit, Rate, Row, Totals


def rate(count: int, total: int) -> Rate:
    low, high = clopper_pearson(count, total) if total else (0.0, 1.0)
    return Rate(count, total, low, high)


#: The bars: the shares of faults above the bound caught with the right verdict, of wrong tensors
#: explained, and of faults attributed to the right side.
DETECTED, DIAGNOSED, BLAMED = 0.98, 0.90, 0.97
#: The bar for the share of faults that act inside the engine, nnsight or the relay.
INSIDE = 0.60


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


def bars(
    rows: Sequence[Row], totals: Totals, limits: Sequence[Limit] = (), *, whole: bool = False
) -> tuple[str, ...]:
    """Return the bars that do not hold. A fault that is never caught breaks a separate bar: among
    many faults, a whole blind gate could lie within two per cent. Only the worst detection limit is
    named. The share of faults that act inside is checked only in a `whole` self-test, because
    faults chosen by name may all act behind the adapter.
    """
    complaints = []
    if totals.detected.count < DETECTED * totals.detected.total or not totals.detected.total:
        complaints.append(f"{DETECTED:.0%} caught with the right verdict: {totals.detected}")
    if totals.diagnosed.count < DIAGNOSED * totals.diagnosed.total:
        complaints.append(f"{DIAGNOSED:.0%} of the wrong tensors explained: {totals.diagnosed}")
    for where, blamed in (
        ("", totals.blamed),
        (" without a fault-free column beside", totals.apart),
    ):
        if blamed.count < BLAMED * blamed.total:
            complaints.append(f"{BLAMED:.0%} attributed to the right side{where}: {blamed}")
    if whole and totals.inside.count < INSIDE * totals.inside.total:
        complaints.append(f"{INSIDE:.0%} injected inside engine, nnsight or relay: {totals.inside}")
    if totals.alarms.count:
        complaints.append(f"no false alarm: {totals.alarms}")
    # At no place and dose of any model, misses below the bound included.
    caught: dict[str, bool] = {}
    for row in rows:
        if row.ending in {Ending.CAUGHT, Ending.MISSED, Ending.BELOW}:
            name = f"{row.fault} on {row.backend}"
            right = row.ending is Ending.CAUGHT and row.right_verdict
            caught[name] = caught.get(name, False) or right
    complaints += [f"{name} is never caught" for name, is_caught in caught.items() if not is_caught]
    complaints += broken(limits)[:1]
    return tuple(complaints)


def clopper_pearson(count: int, total: int) -> tuple[float, float]:
    """Return the exact 95 % interval of a rate, given `count` of `total` trials (Clopper and
    Pearson, 1934).

    Each side takes half of the error probability, unless the count is 0 or `total`: then one side
    cannot be missed, and the other takes all of it. So 0 of n is bounded by 1 − 0.05^(1/n).
    """
    if not 0 <= count <= total or not total:
        raise ValueError(f"{count} of {total} is no rate")
    side = 0.05 if count in {0, total} else 0.025

    def tail(counts: range, p: float) -> float:
        return math.fsum(_exactly(k, total, p) for k in counts)

    low, high = 0.0, 1.0
    if count > 0:
        low = _bisect(lambda p: tail(range(count, total + 1), p) < side)
    if count < total:
        high = _bisect(lambda p: tail(range(count + 1), p) > side)
    return low, high


def _bisect(is_below: Callable[[float], bool]) -> float:
    """Return where a condition on [0, 1] ends to hold."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if is_below(middle) else (low, middle)
    return (low + high) / 2


def _exactly(k: int, n: int, p: float) -> float:
    if p in {0.0, 1.0}:
        return float(k == n * p)
    log = math.lgamma(n + 1) - math.lgamma(k + 1) - math.lgamma(n - k + 1)
    return math.exp(log + k * math.log(p) + (n - k) * math.log1p(-p))
