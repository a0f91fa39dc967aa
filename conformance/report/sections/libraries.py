"""Other libraries: family × scenario, their float32 errors and where each begins."""

from __future__ import annotations

from collections.abc import Sequence

from conformance.engines import LIBRARIES
from conformance.records import CellResult, Precision, Results, Verdict
from conformance.report.sections.section import Entry, Heading, Note, Section, Table, Text
from conformance.report.verdict_styles import LOOKS
from conformance.shortening import clip

#: How much of a reason is shown: the number of observations off, and the first place.
_WORDS = 110

_NOTE = (
    "Each case as a program in the library's own API, against the same float32 reference. A "
    "figure is the largest relative distance of any observation from the reference in float32."
)


def section(results: Results) -> Section | None:
    """Return the table of the libraries' columns; None if there are none."""
    own = [column.id for column in results.columns if column.engine in LIBRARIES]
    if not own:
        return None
    places = dict.fromkeys((cell.model, cell.scenario) for cell in results.cells)
    by_place: dict[tuple[str, str, str], list[CellResult]] = {}
    for cell in results.cells:
        by_place.setdefault((cell.model, cell.scenario, cell.backend), []).append(cell)
    rows = tuple(
        (f"{model} · {scenario}", *(_entry(by_place.get((model, scenario, c), [])) for c in own))
        for model, scenario in places
        if any((model, scenario, column) in by_place for column in own)
    )
    headings = (Heading("model · program"), *map(Heading, own))
    table = Table(headings, rows, first=len(rows))
    return Section("Other libraries", (Note(_NOTE), table), "libraries")


def _entry(cells: Sequence[CellResult]) -> Entry:
    """Summarize a scenario's cells: how many pass and how closely, or the first that does not."""
    if not cells:
        return ""
    verdicts = {cell.id: cell.meaning or cell.verdict for cell in cells}
    failed = [cell for cell in cells if verdicts[cell.id].fails]
    if not failed:
        neutral = [cell for cell in cells if not verdicts[cell.id].passes]
        if neutral:
            return _text(neutral[0], verdicts[neutral[0].id], neutral[0].reason)
        nearest = cells[0]
        return _text(nearest, verdicts[nearest.id], f"{len(cells)} pass{_distance(cells)}")
    first = failed[0]
    verdict = verdicts[first.id]
    many = f"{verdict} {len(failed)} of {len(cells)}{_distance(failed)}"
    return (_text(first, verdict, many), clip(first.reason, _WORDS))


def _text(cell: CellResult, verdict: Verdict, words: str) -> Text:
    look = LOOKS[verdict]
    return Text(words, look.family, look.symbol, cell=cell.id)


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
