"""Compare run A and run B cell by cell (pure). A regression passed, or did not fail, in A."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import field
from enum import StrEnum

from conformance.errors import ConformanceError, ExitCode
from conformance.report.diff.matched_columns import Cost, GroupChange, costs, layouts, match_columns
from conformance.spec.records import (
    CellResult,
    Judged,
    Limits,
    Results,
    Thresholds,
    Verdict,
    record,
)
from conformance.spec.shortening import without_numbers

#: Measured numbers and addresses differ from run to run; the index of a layer or a prompt does not,
#: and a diagnosis depends on it.
_MEASURED = re.compile(r"0x[0-9a-f]+|\d+\.\d+(?:e[+-]?\d+)?|\d+e[+-]?\d+", re.IGNORECASE)


class ChangeKind(StrEnum):
    """How a cell changed."""

    FAILURE = "new failure"
    LOST = "no longer supported"
    MARGIN = "margin shrank"
    DIAGNOSIS = "fails in another way"
    NUMERICS = "coarser in bf16"
    ALONE = "no longer judged in float32"
    FIXED = "fixed"
    INEXACT = "no longer bitwise"
    KNOWN = "known gap"

    @property
    def regression(self) -> bool:
        return self in (ChangeKind.FAILURE, ChangeKind.LOST)


@record()
class CellChange:
    """One cell that changed."""

    kind: ChangeKind
    id: str
    model: str
    backend: str
    scenario: str
    case: str
    before: str
    after: str
    words: str = ""
    harness: bool = False
    command: str = ""


@record()
class Diff:
    """The changes from run `a` to run `b`. `versions` maps a package to its versions in both."""

    a: str
    b: str
    common: int
    changes: tuple[CellChange, ...] = ()
    layouts: tuple[GroupChange, ...] = ()
    costs: tuple[Cost, ...] = ()
    versions: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    only_a: tuple[str, ...] = ()
    only_b: tuple[str, ...] = ()
    seconds: tuple[float, float] = (0.0, 0.0)
    peak_mib: tuple[float, float] = (0.0, 0.0)
    notes: tuple[str, ...] = ()

    def of(self, kind: ChangeKind) -> tuple[CellChange, ...]:
        return tuple(change for change in self.changes if change.kind is kind)

    def exit_code(self, *, strict: bool = False) -> ExitCode:
        """Return 1 for a regression; if strict, also for a shrunken margin or a missing cell."""
        if any(change.harness for change in self.changes if change.kind.regression):
            return ExitCode.HARNESS
        worse = any(change.kind.regression for change in self.changes)
        closer = strict and (bool(self.of(ChangeKind.MARGIN)) or bool(self.only_a))
        return ExitCode.UNEXPECTED if worse or closer else ExitCode.OK


def compare(a: Results, b: Results, *, margin: float = 2.0, cost: float = 1.5) -> Diff:
    """Return the changes. Margins count if they shrink by `margin`, costs if they change by `cost`.

    Columns are compared by backend, even in different environments. Raises ConformanceError if the
    runs have no cell in common.
    """
    a, b = match_columns(a, b)
    before = {cell.id: cell for cell in a.cells}
    after = {cell.id: cell for cell in b.cells}
    common = [name for name in before if name in after]
    if not common:
        raise ConformanceError(
            f"runs {a.run.id} and {b.run.id} have no cell in common",
            remedy="compare runs of the same models, backends and scenarios",
        )
    # Use the same thresholds for both: otherwise a margin could shrink although no number changed.
    thresholds = b.environment.thresholds
    changes = [
        change
        for name in common
        if (change := _change(before[name], after[name], thresholds, margin)) is not None
    ]
    order = list(ChangeKind)
    return Diff(
        a=a.run.id,
        b=b.run.id,
        common=len(common),
        changes=tuple(sorted(changes, key=lambda change: order.index(change.kind))),
        layouts=layouts(a, b),
        costs=costs(a, b, factor=cost),
        versions=_versions(a, b),
        only_a=tuple(name for name in before if name not in after),
        only_b=tuple(name for name in after if name not in before),
        seconds=(a.run.seconds, b.run.seconds),
        peak_mib=(a.run.peak_mib, b.run.peak_mib),
        notes=_notes(a, b),
    )


def _change(
    a: CellResult, b: CellResult, thresholds: Thresholds, margin: float
) -> CellChange | None:
    """Return how a cell changed from run `a` to run `b`, None if it did not.

    The verdicts decide. Two cells that do not pass are compared by their causes. A new failure
    that known.yaml expects is a known gap, not a regression.
    """
    before, words = a.diagnosis or a.reason, b.diagnosis or b.reason
    fails, lost = b.verdict.fails and not a.verdict.fails, b.verdict.neutral and a.verdict.passes
    if fails or lost:
        kind = ChangeKind.FAILURE if fails else ChangeKind.LOST
        kind, words = (ChangeKind.KNOWN, b.expected) if b.expected else (kind, words)
    elif b.verdict.passes and not a.verdict.passes:
        kind, words = ChangeKind.FIXED, before
    elif b.verdict is Verdict.DRIFT and a.verdict.passes:
        kind = ChangeKind.NUMERICS
    elif not b.verdict.passes and _signature(a) != _signature(b):
        kind, words = ChangeKind.DIAGNOSIS, f"{before} → {words}"
    elif shrunk := _shrunk(a, b, thresholds, margin):
        kind, words = ChangeKind.MARGIN, shrunk
    elif _passes(a.meaning) and not _passes(b.meaning):
        kind, words = ChangeKind.ALONE, ""
    elif a.verdict is Verdict.EXACT and b.verdict is Verdict.MATCH:
        kind, words = ChangeKind.INEXACT, b.reason
    else:
        return None
    return CellChange(
        kind,
        *(b.id, b.model, b.backend, b.scenario, b.case, _verdict(a), _verdict(b), words),
        harness=b.harness and b.verdict.fails,
        command=b.command,
    )


def _passes(verdict: Verdict | None) -> bool:
    return verdict is not None and verdict.passes


def _verdict(cell: CellResult) -> str:
    """Return `wrong in float32`: a failure with the deciding precision."""
    words = cell.verdict.value
    return f"{words} in {cell.precision}" if cell.verdict.fails else words


def _signature(cell: CellResult) -> tuple[str, str]:
    """Return the verdict and its cause, without what differs from run to run."""
    return _verdict(cell), cause_words(cell)


def cause_words(cell: CellResult) -> str:
    """Return a verdict's cause without measured numbers, so that equal causes compare equal."""
    return _MEASURED.sub("#", cell.diagnosis) or without_numbers(cell.reason)


def _shrunk(a: CellResult, b: CellResult, thresholds: Thresholds, margin: float) -> str:
    """Describe how far the margin of a passing cell shrank; empty if it did not."""
    if not (a.verdict.passes and b.verdict.passes):
        return ""
    before = headroom(a, thresholds, exact=True)
    after = headroom(b, thresholds, exact=False)
    if not before or not after or before.left <= 0 or after.left * margin > before.left:
        return ""
    return (
        f"{after.left:.0%} of the {after.of}'s threshold is left at {after.site}, "
        f"was {before.left:.0%} ({before.of} at {before.site})"
    )


def _versions(a: Results, b: Results) -> dict[str, tuple[str, str]]:
    """Return version changes of the main environments and of columns that ran elsewhere."""
    changed: dict[str, tuple[str, str]] = {}
    after = {(group.model, group.backend): group.versions for group in b.groups}
    pairs = [(a.environment.versions, b.environment.versions)]
    pairs += [
        (group.versions, installed)
        for group in a.groups
        if (installed := after.get((group.model, group.backend))) is not None
    ]
    for old, new in pairs:
        for name in sorted({*old, *new}):
            pair = old.get(name, "–"), new.get(name, "–")
            if pair[0] != pair[1]:
                changed.setdefault(name, pair)
    return changed


def _notes(a: Results, b: Results) -> tuple[str, ...]:
    notes: list[str] = []
    if a.environment.devices != b.environment.devices:
        before, after = (", ".join(run.environment.devices) or "unknown" for run in (a, b))
        notes.append(f"the runs are of different hardware: {before} and {after}")
    if a.environment.settings != b.environment.settings:
        before, after = (", ".join(run.environment.settings) or "none" for run in (a, b))
        notes.append(f"other threads or kernels were chosen: {before}, and {after}")
    if a.environment.thresholds != b.environment.thresholds:
        notes.append("the runs were judged by different thresholds; margins are by the second's")
    return tuple(notes)


@record()
class Headroom:
    """The smallest headroom of a cell, its site, and the number it belongs to."""

    left: float
    site: str
    of: str


def headroom(cell: CellResult, thresholds: Thresholds, *, exact: bool) -> Headroom | None:
    """Return the headroom; None if no number was judged. `exact` includes bitwise equality."""
    rooms = [
        Headroom(max(0.0, room), judged.site, name)
        for judged in cell.observations
        if exact or judged.verdict is not Verdict.EXACT
        for name, room in _rooms(judged, thresholds.of(cell.precision))
    ]
    return min(rooms, key=lambda headroom: headroom.left, default=None)


def _rooms(judged: Judged, limits: Limits) -> Iterator[tuple[str, float]]:
    if judged.q_med is not None and len(judged.ratios) > 1:
        yield "median ratio", 1 - judged.q_med / limits.far_med
    if judged.q_max is not None:
        yield "largest ratio", 1 - judged.q_max / limits.far_max
    if judged.gain is None:
        return
    room = max(limits.gain_tolerance, limits.gain_sigmas * judged.gain.sigma)
    # Above this limit the noise is too large to judge the gain.
    if room <= limits.gain_room:
        yield "gain", 1 - abs(judged.gain.g - 1) / room
