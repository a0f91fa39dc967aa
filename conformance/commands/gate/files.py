"""Write a gate's output files: the summary for people, JUnit XML and a badge for CI."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree as ET

from conformance.commands.gate.decide import Decision
from conformance.commands.gate.summary import document
from conformance.errors import ExitCode
from conformance.judge.expectations import Assessed, Finding, Standing
from conformance.judge.expectations.entries import describe
from conformance.report.grouping import grouped
from conformance.report.render import markdown
from conformance.runner.store.files import write_text

SUMMARY, JUNIT, BADGE = "summary.md", "junit.xml", "badge.json"


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
    suites = grouped(decision.assessed, lambda each: (each.cell.model, each.cell.backend))
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
