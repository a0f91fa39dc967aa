"""Render the gate's decision as JUnit XML: one suite per model and backend, one for known.yaml.

Unexpected, stale and expired cells are failures. Harness errors are errors, and known gaps are
skipped. A flaky cell passes with its history in `system-out` unless the gate is strict. Changes of
an environment that nobody requested are properties of its suites.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from xml.etree import ElementTree as ET

from conformance.expectations import Assessed, Finding, Standing
from conformance.expectations.entries import describe
from conformance.gate.decide import Decision

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
    """Return the text of the XML document."""
    root = ET.Element("testsuites", name="conformance")
    moved = {column.id: column.moved for column in decision.results.columns}
    suites: dict[tuple[str, str], list[Assessed]] = defaultdict(list)
    for assessed in decision.assessed:
        suites[assessed.cell.model, assessed.cell.backend].append(assessed)
    for (model, backend), members in suites.items():
        suite = ET.SubElement(root, "testsuite", name=f"{model}.{backend}")
        if changes := moved.get(backend):
            properties = ET.SubElement(suite, "properties")
            for name, change in changes.items():
                ET.SubElement(properties, "property", name=f"not requested: {name}", value=change)
        for assessed in members:
            _case(suite, assessed, strict=decision.strict)
        _count(suite)
    if decision.known.entries:
        suite = ET.SubElement(root, "testsuite", name="known.yaml")
        for index, standing in enumerate(decision.standings):
            _entry(suite, decision, index, standing)
        _count(suite)
    _totals(root)
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
        element.text = _clean(_evidence(assessed))


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


def _evidence(assessed: Assessed) -> str:
    cell = assessed.cell
    blame = str(cell.attribution) if cell.attribution else ""
    parts = (assessed.words, cell.diagnosis, blame, cell.detail, f"again: {cell.command}")
    return "\n".join(part for part in dict.fromkeys(parts) if part)


def _count(suite: ET.Element) -> None:
    cases: Sequence[ET.Element] = suite.findall("testcase")
    suite.set("tests", str(len(cases)))
    for kind, plural in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
        suite.set(plural, str(sum(case.find(kind) is not None for case in cases)))
    suite.set("time", f"{sum(float(case.get('time', '0')) for case in cases):.3f}")


def _totals(root: ET.Element) -> None:
    for name in ("tests", "failures", "errors", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("time", f"{sum(float(suite.get('time', '0')) for suite in root):.3f}")


def _clean(text: str) -> str:
    return _FORBIDDEN.sub("\N{REPLACEMENT CHARACTER}", text)
