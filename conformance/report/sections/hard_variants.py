"""Hard variants: results of models whose default form was made easier to judge."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from conformance.records import CellResult, Precision, Results, Verdict
from conformance.report.sections.section import Entry, Heading, Note, Section, Table, Text
from conformance.report.verdict_styles import LOOKS

_NOTE = (
    "The default form of these models has a config that makes near-ties of experts matter less, so "
    "that bf16 can be judged tightly. The hard variant has the published one: what it shows stands "
    "beside what the default form shows, where this run has it."
)


def section(results: Results) -> Section | None:
    """Compare hard variants with their default form; None if the run has none."""
    hard = [model for model in results.models if model.harder_than]
    if not hard:
        return None
    columns = [column.id for column in results.columns]
    by_place: dict[tuple[str, str], list[CellResult]] = {}
    for cell in results.cells:
        by_place.setdefault((cell.model, cell.backend), []).append(cell)

    def row(model: str, words: str) -> tuple[Entry, ...]:
        return (words, *(_entry(by_place.get((model, column), [])) for column in columns))

    rows = []
    for model in hard:
        rows.append(row(model.id, model.id))
        if any((model.harder_than, column) in by_place for column in columns):
            rows.append(row(model.harder_than, f"{model.harder_than}, its default form"))
    table = Table((Heading("model"), *map(Heading, columns)), tuple(rows), first=len(rows))
    return Section("Hard variants", (Note(_NOTE), table), "hard-variants")


def _entry(cells: Sequence[CellResult]) -> Entry:
    """Count the verdicts in each precision, linked to the first cell that failed."""
    return tuple(
        line
        for precision in Precision
        if (line := _line(precision, [(cell, _verdict(cell, precision)) for cell in cells]))
    )


def _verdict(cell: CellResult, precision: Precision) -> Verdict | None:
    return cell.meaning if precision is Precision.FLOAT32 else cell.numerics


def _line(precision: Precision, judged: Sequence[tuple[CellResult, Verdict | None]]) -> Text | None:
    given = [(cell, verdict) for cell, verdict in judged if verdict is not None]
    if not given:
        return None
    counts = Counter(verdict for _, verdict in given)
    words = ", ".join(f"{count} {verdict}" for verdict, count in counts.most_common())
    cell, worst = next(((c, v) for c, v in given if v.fails), given[0])
    look = LOOKS[worst]
    return Text(f"{precision}: {words}", look.family, look.symbol, cell=cell.id)
