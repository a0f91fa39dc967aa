"""Match a run's cells with known.yaml: what was expected, and which entries no longer hold (pure).

Every cell is expected to pass. One that does not needs an entry that applies to it and names its
verdict. This includes `unsupported` and `skipped`: otherwise an engine that refuses everything
would look good. Nothing excuses a fault of the harness.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Sequence
from enum import StrEnum
from fnmatch import fnmatchcase

from conformance.judge.expectations.conditions import Where, holds, where_of
from conformance.judge.expectations.entries import Entry, KnownGaps
from conformance.judge.expectations.sizes import failing_answers, largest_error
from conformance.spec.records import (
    Cell,
    CellResult,
    Finding,
    Precision,
    Results,
    Selection,
    Verdict,
    record,
)


class Standing(StrEnum):
    """The state of an entry after a run."""

    USED = "used"
    STALE = "stale"
    EXPIRED = "expired"
    REDUNDANT = "redundant"
    NOT_SEEN = "not seen this time"
    NOT_HERE = "does not apply here"
    NOT_RUN = "not in this run"

    @property
    def wrong(self) -> bool:
        """Return whether the file has to be fixed."""
        return self in (Standing.STALE, Standing.EXPIRED, Standing.REDUNDANT)


@record()
class Assessed:
    """One cell with its finding, the reason for it, and the entries that apply.

    `plain` is the cell of its column's backend, which entries match: an entry on a backend applies
    in every environment.
    """

    cell: CellResult
    plain: Cell
    finding: Finding
    words: str
    entries: tuple[int, ...] = ()


def explains(entry: Entry, cell: CellResult) -> bool:
    """Return whether the cell fails as the entry expects, in every precision that fails."""
    if not _speaks_of(entry, cell) or _other_rules(entry, cell):
        return False
    if entry.prediction:
        return _fits_prediction(entry, cell)
    if entry.at_most is None:
        return True
    size = largest_error(cell)
    return size is not None and size <= entry.at_most


def _fits_prediction(entry: Entry, cell: CellResult) -> bool:
    return all(entry.prediction in answer.predicted for answer in failing_answers(cell))


def _other_rules(entry: Entry, cell: CellResult) -> list[str]:
    """Return the broken rules that the entry does not name."""
    return [
        relation.name
        for answer in failing_answers(cell)
        for relation in answer.relations
        if relation.gates
        and not relation.holds
        and not any(fnmatchcase(relation.name, pattern) for pattern in entry.relations)
    ]


def _speaks_of(entry: Entry, cell: CellResult) -> bool:
    """Return whether the cell fails as the entry expects, ignoring its size."""
    words = f"{cell.reason}\n{cell.diagnosis}\n{cell.detail}"
    alike = entry.precision in (None, cell.precision)
    return alike and cell.verdict in entry.verdicts and entry.says in words


def assess(results: Results, known: KnownGaps, today: dt.date) -> tuple[Assessed, ...]:
    """Assess every cell of a run, in its order."""
    places = where_of(results)
    backends = {column.id: column.backend.id for column in results.columns}
    of_bf16 = {
        index
        for index, entry in enumerate(known.entries)
        if entry.precision is Precision.BF16 or set(entry.verdicts) == {Verdict.DRIFT}
    }
    assessed = []
    for cell in results.cells:
        plain = Cell(cell.model, backends[cell.backend], cell.scenario, cell.case)
        entries = find_applying(known, plain, places[cell.model, cell.backend])
        if cell.numerics is None and cell.meaning is not None:  # it ran in float32 only
            entries = tuple(index for index in entries if index not in of_bf16)
        assessed.append(_assess(cell, plain, known, entries, today))
    return tuple(assessed)


def find_applying(known: KnownGaps, plain: Cell, where: Where) -> tuple[int, ...]:
    """Return the entries that match a backend's cell and whose conditions are met."""
    return tuple(
        index
        for index, entry in enumerate(known.entries)
        if plain in entry and holds(entry.when, where)
    )


def assess_entries(
    assessed: Sequence[Assessed],
    known: KnownGaps,
    today: dt.date,
    *,
    selection: Selection | None = None,
) -> tuple[Standing, ...]:
    """Return the state of every entry, in the file's order.

    If the `selection` leaves cells out, a redundant entry may still be needed there.
    """
    entries = enumerate(known.entries)
    standings = [_standing(index, entry, assessed, today) for index, entry in entries]
    if selection is not None and selection.left_out:
        unsure = {Standing.REDUNDANT: Standing.NOT_RUN}
        standings = [unsure.get(found, found) for found in standings]
    # Inherited entries cannot be fixed in this file.
    return tuple(
        Standing.USED if found.wrong and index >= len(known.own) else found
        for index, found in enumerate(standings)
    )


def _assess(
    cell: CellResult, plain: Cell, known: KnownGaps, entries: tuple[int, ...], today: dt.date
) -> Assessed:
    if cell.verdict.passes:
        always = tuple(index for index in entries if not known.entries[index].sometimes)
        if not always:
            return Assessed(cell, plain, Finding.PASSED, "", entries)
        words = f"passes, but {_lines(known, always)} expects {_wanted(known, always)}"
        return Assessed(cell, plain, Finding.STALE, words, always)
    explaining = [index for index in entries if explains(known.entries[index], cell)]
    valid = [index for index in explaining if not known.entries[index].expired(today)]
    if cell.harness:
        finding, words = Finding.HARNESS, cell.reason or "the harness failed"
    elif valid:
        finding, words = Finding.KNOWN, known.entries[valid[0]].reason
    elif explaining:
        finding, words = Finding.EXPIRED, f"{_lines(known, explaining)} expired"
    else:
        drifts = cell.verdict is Verdict.DRIFT
        finding = Finding.NUMERICS if drifts else Finding.UNEXPECTED
        words = _unexpected(cell, known, entries)
    return Assessed(cell, plain, finding, words, entries)


def _unexpected(cell: CellResult, known: KnownGaps, entries: Sequence[int]) -> str:
    """Return what the cell says, and what was expected instead."""
    words = cell.diagnosis or cell.reason or "no reason was recorded"
    if beyond := [index for index in entries if _speaks_of(known.entries[index], cell)]:
        return f"{words} ({_why_not(known, beyond, cell)})"
    # An entry that holds only sometimes does not contradict another failure.
    if contradicted := [index for index in entries if not known.entries[index].sometimes]:
        words += f" ({_lines(known, contradicted)} expects {_wanted(known, contradicted)})"
    return words


def _standing(index: int, entry: Entry, assessed: Sequence[Assessed], today: dt.date) -> Standing:
    if entry.expired(today):
        return Standing.EXPIRED
    own = [result for result in assessed if index in result.entries]
    if any(result.finding is Finding.STALE for result in own):
        return Standing.STALE
    if any(explains(entry, result.cell) for result in own):
        return Standing.USED
    if own and entry.sometimes:
        return Standing.NOT_SEEN
    if own:
        # An unexpected cell already shows that the entry is wrong about it.
        alone = any(result.finding is not Finding.KNOWN for result in own)
        return Standing.USED if alone else Standing.REDUNDANT
    matched = any(result.plain in entry for result in assessed)
    return Standing.NOT_HERE if matched else Standing.NOT_RUN


def _lines(known: KnownGaps, entries: Sequence[int]) -> str:
    name = known.path.name if known.path else "known"
    return " and ".join(
        f"{name}:{line}" if (line := known.line(index)) else f"the built-in {name}"
        for index in entries
    )


def _why_not(known: KnownGaps, entries: Sequence[int], cell: CellResult) -> str:
    """Return why entries that match the cell's words do not explain it.

    Example: `it is 0.021 off, known.yaml:52 expects at most 0.0015`.
    """
    lines = _lines(known, entries)
    if rules := _other_rules(known.entries[entries[0]], cell):
        return f"{rules[0]!r} does not hold, which {lines} does not name under `relations`"
    if predictions := {name for index in entries if (name := known.entries[index].prediction)}:
        return f"it is not what {lines} predicts: {' or '.join(sorted(predictions))}"
    size = largest_error(cell)
    here = "not all that fails has a size" if size is None else f"it is {size:.2g} off"
    most = max(known.entries[index].at_most or 0.0 for index in entries)
    return f"{here}, {lines} expects at most {most:g}"


def _wanted(known: KnownGaps, entries: Sequence[int]) -> str:
    wanted = []
    for entry in (known.entries[index] for index in entries):
        words = f" in {entry.precision}" if entry.precision else ""
        words += f" saying {entry.says!r}" if entry.says else ""
        words += f" by at most {entry.at_most:g}" if entry.at_most is not None else ""
        wanted += [verdict.value + words for verdict in entry.verdicts]
    return " or ".join(dict.fromkeys(wanted))
