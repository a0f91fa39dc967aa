"""Tables that compare hard variants with default forms, and other libraries with the reference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conformance.engines import LIBRARIES
from conformance.report.grouping import group_by
from conformance.report.sections.section import (
    Entry,
    Note,
    Section,
    Table,
    columns,
    verdict_text,
)
from conformance.spec.records import CellResult, Precision, Results
from conformance.spec.shortening import clip

#: How much of a reason is shown: the number of observations off, and the first place.
_WORDS = 110

_OF_VARIANTS = (
    "The default form of these models has a config that makes near-ties of experts matter less, so "
    "that bf16 can be judged tightly. The hard variant has the published one: what it shows stands "
    "beside what the default form shows, where this run has it."
)
_OF_LIBRARIES = (
    "Each case as a program in the library's own API, against the same float32 reference. A "
    "figure is the largest relative distance of any observation from the reference in float32."
)


def compare_variants(results: Results) -> Section | None:
    """Compare hard variants with their default form; None if the run has none."""
    names = [column.id for column in results.columns]
    cells = group_by(results.cells, lambda cell: (cell.model, cell.backend))

    def row(model: str, words: str) -> tuple[Entry, ...]:
        return (words, *(_count_verdicts(cells.get((model, name), [])) for name in names))

    rows = []
    for model in results.models:
        if model.harder_than:
            rows.append(row(model.id, model.id))
            if any((model.harder_than, name) in cells for name in names):
                rows.append(row(model.harder_than, f"{model.harder_than}, its default form"))
    table = Table(columns("model", *names), tuple(rows), first=len(rows))
    return Section("Hard variants", (Note(_OF_VARIANTS), table), "hard-variants") if rows else None


def _count_verdicts(cells: Sequence[CellResult]) -> Entry:
    """Count the verdicts in each precision, linked to the first cell that failed."""
    lines = []
    for precision in Precision:
        in_float32 = precision is Precision.FLOAT32
        verdicts = ((cell, cell.meaning if in_float32 else cell.numerics) for cell in cells)
        judged = [(cell, verdict) for cell, verdict in verdicts if verdict is not None]
        if judged:
            counts = Counter(verdict for _, verdict in judged).most_common()
            words = ", ".join(f"{count} {verdict}" for verdict, count in counts)
            cell, verdict = next((pair for pair in judged if pair[1].fails), judged[0])
            lines.append(verdict_text(verdict, f"{precision}: {words}", cell.id))
    return tuple(lines)


def compare_libraries(results: Results) -> Section | None:
    """Return model × program for each column of another library; None if there is none."""
    own = [column.id for column in results.columns if column.engine in LIBRARIES]
    cells = group_by(results.cells, lambda cell: (cell.model, cell.scenario, cell.backend))
    rows = tuple(
        (f"{model} · {scenario}", *(_summarize(cells.get((model, scenario, c), [])) for c in own))
        for model, scenario in dict.fromkeys((cell.model, cell.scenario) for cell in results.cells)
        if any((model, scenario, column) in cells for column in own)
    )
    table = Table(columns("model · program", *own), rows, first=len(rows))
    return Section("Other libraries", (Note(_OF_LIBRARIES), table), "libraries") if own else None


def _summarize(cells: Sequence[CellResult]) -> Entry:
    """Summarize a scenario's cells: how many pass and how closely, or the first that does not."""
    if not cells:
        return ""
    verdicts = {cell.id: cell.meaning or cell.verdict for cell in cells}
    failed = [cell for cell in cells if verdicts[cell.id].fails]
    first = next((cell for cell in cells if not verdicts[cell.id].passes), cells[0])
    if failed:
        first = failed[0]
        words = f"{verdicts[first.id]} {len(failed)} of {len(cells)}{_distance(failed)}"
        text = verdict_text(verdicts[first.id], words, first.id)
        return (text, clip(first.reason, _WORDS))
    passes = verdicts[first.id].passes
    words = f"{len(cells)} pass{_distance(cells)}" if passes else first.reason
    return verdict_text(verdicts[first.id], words, first.id)


def _distance(cells: Sequence[CellResult]) -> str:
    """Return the largest error of an observation in float32."""
    errors = [
        observation.error
        for cell in cells
        for answer in (cell, cell.beside)
        if answer is not None and answer.precision is Precision.FLOAT32
        for observation in answer.observations
        if observation.error is not None
    ]
    return f", {max(errors):.1e}" if errors else ""
