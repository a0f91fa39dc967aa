"""The table of a self-test: how far a matrix can be trusted.

Read from `selftest.json` in the run's folder or the folder of all runs, so any run's page can show
it. A file that is damaged or of another version is ignored.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.report.grouping import group_by
from conformance.report.sections.section import Block, Facts, Note, Section, Table, Text, columns
from conformance.report.verdict_styles import Family
from conformance.runner.store.files import read_record
from conformance.spec.records import Precision
from conformance.spec.records.injected import FILE, SCHEMA, Ending, Limit, Row, SelfTest, Totals

#: The family in which an ending is shown.
_FAMILY = {
    Ending.CAUGHT: Family.PASS,
    Ending.QUIET: Family.PASS,
    Ending.MISSED: Family.WRONG,
    Ending.ALARM: Family.WRONG,
    Ending.BELOW: Family.DOUBT,
    Ending.ABSENT: Family.NEUTRAL,
}


def read(folder: Path) -> Section | None:
    """Return the self-test in a run's folder, else the last one of all runs."""
    for path in (folder / FILE, folder.parent / FILE):
        try:
            stored = read_record(SelfTest, path)
        except ConformanceError:
            continue
        if stored is not None and stored.schema == SCHEMA:
            return section(stored)
    return None


def section(stored: SelfTest) -> Section:
    """Return a stored self-test: the rates, then each fault by scenario and backend."""
    rows = stored.rows
    models = ", ".join(dict.fromkeys(row.model for row in rows))
    broken = "; ".join(stored.broken)
    blocks: list[Block] = [
        Note(
            f"Known faults were injected inside real workers on {models} ({stored.date[:10]}) "
            f"and judged as this run was. {'' if broken else 'Every bar holds.'}".strip()
        )
    ]
    if broken:
        blocks.append(Note(Text(f"It failed: {broken}.", Family.WRONG, "≠")))
    blocks += _limits(stored.limits)
    blocks += [Facts((*_rates(stored.totals), *_only_bf16(rows))), _faults(rows)]
    misses = tuple(
        (f"{row.fault} on {row.model} × {row.backend}", row.reason)
        for row in rows
        if row.ending in {Ending.MISSED, Ending.ALARM}
    )
    if misses:
        blocks.append(Facts(misses, f"{len(misses)} missed or flagged wrongly"))
    return Section("Self-test", tuple(blocks), id="selftest")


def _faults(rows: Sequence[Row]) -> Table:
    backends = list(dict.fromkeys(row.backend for row in rows))
    groups = group_by(rows, lambda row: (row.fault, row.scenario))
    return Table(
        columns("fault", "side", "scenario", *backends),
        tuple(
            (
                *(fault, own[0].side, scenario),
                *(_endings([row for row in own if row.backend == name]) for name in backends),
            )
            for (fault, scenario), own in groups.items()
        ),
        title="each fault, and how it ended on each backend",
        first=len(groups),
        folded=True,
    )


_OF_WRITES = "detection limit of a write, as a share of its effect"
_LATER = "detection limit of a write's effect at a later layer, as a share of the effect"
_OF_READS = "detection limit of a value that is only read, as a share of the row's length"
_MEANING = (
    "A detection limit is the smallest fault that is found in half / in 95 % of the trials, in the "
    "scenario's least sensitive case. Gain: the effect is too large or too small; off-axis: a part "
    "of it has another direction; leak: a part of it is at a token that is not written. Only in "
    "float32 must the limits be within a bar. In bf16 smaller faults are within rounding; a limit "
    "above 1 is larger than the effect itself."
)


def _limits(limits: Sequence[Limit]) -> list[Block]:
    """Return the detection limits of writes, of writes' effects at later layers, and of reads."""

    def title(limit: Limit) -> str:
        return (_LATER if limit.kind.later else _OF_WRITES) if limit.kind.of_write else _OF_READS

    by_title = group_by(limits, title)
    titles = (_OF_WRITES, _LATER, _OF_READS)
    tables = [_limits_of(by_title[name], name) for name in titles if name in by_title]
    return [Note(_MEANING), *tables] if tables else []


def _limits_of(limits: Sequence[Limit], title: str) -> Table:
    """Return a scenario's worst limits; backends with equal figures share a row."""
    kinds = list(dict.fromkeys(limit.kind for limit in limits))
    ordered = sorted(limits, key=lambda limit: limit.scenario)
    rows: dict[tuple[str, ...], list[str]] = {}
    for key, group in group_by(ordered, lambda limit: (limit.scenario, limit.precision)).items():
        for backend, own in group_by(group, lambda limit: limit.backend).items():
            worst = (_worst([limit for limit in own if limit.kind == kind]) for kind in kinds)
            rows.setdefault((*key, *worst), []).append(backend)
    return Table(
        columns("scenario", "precision", "backend", *kinds),
        tuple(
            (scenario, precision, ", ".join(backends), *worst)
            for (scenario, precision, *worst), backends in rows.items()
        ),
        title=title,
        first=len(rows),
    )


def _worst(limits: Sequence[Limit]) -> str:
    """Return the largest doses found in half and in most trials, "> dose" if larger than tried."""
    if not limits:
        return "—"
    return " / ".join(
        f"> {max(limit.largest for limit in unseen):g}"
        if (unseen := [limit for limit in limits if getattr(limit, share) is None])
        else _dose(max(getattr(limit, share) for limit in limits))
        for share in ("half", "most")
    )


def _dose(dose: float) -> str:
    return f"{dose:.0e}" if dose < 0.01 else f"{dose:.2g}"


def _endings(rows: Sequence[Row]) -> tuple[Text, ...]:
    """Return how the injections ended, and with which verdicts."""
    verdicts: dict[str, dict[str, None]] = {}
    for row in rows:
        verdicts.setdefault(row.ending, {})[row.verdict] = None
    return tuple(
        Text(f"{count} {ending} ({', '.join(verdicts[ending])})", _FAMILY.get(ending))
        for ending, count in Counter(row.ending for row in rows).items()
    )


def _rates(totals: Totals) -> Iterator[tuple[str, str]]:
    rates = [
        ("injected inside engine, nnsight or relay", totals.inside),
        ("caught with the right verdict", totals.detected),
        ("wrong tensors explained", totals.diagnosed),
        ("attributed to the right side", totals.blamed),
        ("the same without a fault-free column of the engine", totals.apart),
        *((f"attributed to the right side: {side}", rate) for side, rate in totals.sides.items()),
        ("false alarms", totals.alarms),
    ]
    for name, rate in rates:
        if rate.total:
            interval = f"95 % interval {rate.low:.1%} to {rate.high:.1%}"
            yield name, f"{rate.count} of {rate.total} ({interval})"
    if totals.below:
        yield "not counted", f"{totals.below} injections, too small for the printed bound"
    if totals.absent:
        yield "not expressible there", str(totals.absent)


def _only_bf16(rows: Sequence[Row]) -> Iterator[tuple[str, str]]:
    """Yield the count and the names of the faults that float32 cannot show, if there are any."""
    faults = {
        row.fault: row.precision
        for row in rows
        if row.ending not in {Ending.QUIET, Ending.ALARM}  # those that must not be flagged
    }
    names = [fault for fault, precision in faults.items() if precision is Precision.BF16]
    if names:
        yield "shown by bf16 alone", f"{len(names)} of {len(faults)} faults: {', '.join(names)}"
