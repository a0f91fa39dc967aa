"""Decide on a run from its cells and the entries of known.yaml; repeat unexpected cells first."""

from __future__ import annotations

import datetime as dt
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace

from conformance.errors import ConformanceError, ExitCode
from conformance.judge.expectations import (
    Assessed,
    Conclusion,
    Finding,
    KnownGaps,
    Standing,
    assess,
    assess_entries,
    conclusion_of,
    mark_findings,
    where_of,
)
from conformance.judge.expectations.entries import refuse_unmatched
from conformance.runner.store import RunFolder, RunPlan
from conformance.spec.records import Cell, Results, Thresholds, record

#: More unexpected cells than this are not chance. Repeating them would run the matrix twice.
MOST_REPEATED = 100

#: Findings that a repetition may show to be chance.
_DOUBTFUL = frozenset({Finding.UNEXPECTED, Finding.STALE})


@record()
class Decision:
    """The gate's answer and everything it rests on. `standings` are in the order of the entries."""

    results: Results
    known: KnownGaps
    assessed: tuple[Assessed, ...]
    standings: tuple[Standing, ...]
    strict: bool = False
    notes: tuple[str, ...] = ()
    counts: Mapping[Finding, int] = field(default_factory=dict)

    @property
    def conclusion(self) -> Conclusion:
        return conclusion_of(self.results, strict=self.strict)

    @property
    def exit_code(self) -> ExitCode:
        return self.conclusion.exit_code

    @property
    def wrong_entries(self) -> tuple[int, ...]:
        """Return the indices of entries that are stale, expired, or explained by others."""
        return tuple(index for index, standing in enumerate(self.standings) if standing.wrong)


def decide(
    results: Results,
    known: KnownGaps,
    today: dt.date,
    *,
    assessed: Sequence[Assessed] | None = None,
    strict: bool = False,
    notes: Sequence[str] = (),
) -> Decision:
    """Return the decision on a run. `assessed` may already be settled by repetitions."""
    assessed = tuple(assess(results, known, today) if assessed is None else assessed)
    return Decision(
        results=mark_findings(results, known, today, assessed),
        known=known,
        assessed=assessed,
        standings=assess_entries(assessed, known, today, selection=results.selection),
        strict=strict,
        notes=tuple(notes),
        counts=Counter(result.finding for result in assessed),
    )


def settle(
    results: Results,
    assessed: Sequence[Assessed],
    repeats: Sequence[Results],
    known: KnownGaps,
    today: dt.date,
) -> tuple[Assessed, ...]:
    """Mark unexpected results as flaky if no repetition shows them again; the others stand.

    One repetition that is unexpected too is enough for a result to stand. A repetition with other
    versions or on another device does not count.
    """
    places = where_of(results)
    again: dict[str, list[Assessed]] = defaultdict(list)
    for run in repeats:
        repeated_at = where_of(run)
        for result in assess(run, known, today):
            column = (result.cell.model, result.cell.backend)
            if repeated_at[column] == places.get(column):
                again[result.cell.id].append(result)
    return tuple(
        _settled(result, again[result.cell.id]) if result.finding in _DOUBTFUL else result
        for result in assessed
    )


def refuse_incomplete(results: Results, plan: RunPlan) -> None:
    """Raise ConformanceError for an incomplete run or one judged with other thresholds."""
    judged = Counter(cell.id for cell in results.cells)
    planned = Counter(cell.id for cell in plan.cells)
    footer = results.footer
    whole = footer.planned == footer.judged == len(results.cells)
    if judged != planned or not whole:
        missing = (planned - judged).total()
        raise ConformanceError(
            f"run {plan.run} is incomplete: {missing} of {len(plan.cells)} planned cells have "
            f"no verdict",
            remedy=f"finish it: conformance run --resume {plan.run}",
        )
    if results.environment.thresholds != Thresholds():
        raise ConformanceError(
            f"run {plan.run} was judged by other thresholds than those of this version",
            remedy=f"judge it again: conformance judge {plan.run}",
        )


def _settled(doubtful: Assessed, again: Sequence[Assessed]) -> Assessed:
    if not again:
        return doubtful
    showing = sum(not repeated.finding.fine for repeated in again)
    verdicts = ", ".join(repeated.cell.verdict.value for repeated in again)
    if showing:
        words = f"{doubtful.words} (again in {showing} of {len(again)} repetitions: {verdicts})"
        return replace(doubtful, words=words)
    words = (
        f"{doubtful.cell.verdict.value} once, but as expected in {len(again)} repetitions "
        f"({verdicts}): {doubtful.words}"
    )
    return replace(doubtful, finding=Finding.FLAKY, words=words)


#: Runs cells again and returns the results, one entry for each round.
Repeat = Callable[[Collection[Cell]], Sequence[Results]]


def check(
    run: RunFolder,
    known: KnownGaps,
    cells: Collection[Cell],
    today: dt.date,
    *,
    strict: bool = False,
    repeat: Repeat | None = None,
) -> Decision:
    """Return the decision on a judged run. `cells` are all cells that could exist.

    Raises ConformanceError for an incomplete run and for an entry that matches no cell.
    """
    results = run.results()
    plan = run.plan()
    refuse_incomplete(results, plan)
    refuse_unmatched(known, {*cells, *plan.cells})
    assessed = assess(results, known, today)
    doubtful = [result for result in assessed if result.finding in _DOUBTFUL]
    notes: list[str] = []
    if repeat is not None and len(doubtful) > MOST_REPEATED:
        notes.append(f"{len(doubtful)} unexpected results are no accident: none was repeated")
    elif repeat is not None and doubtful:
        failed = (one.cell for one in doubtful)
        repeats = repeat([Cell(c.model, c.backend, c.scenario, c.case) for c in failed])
        assessed = settle(results, assessed, repeats, known, today)
    return decide(results, known, today, assessed=assessed, strict=strict, notes=notes)
