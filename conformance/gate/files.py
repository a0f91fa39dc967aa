"""Write a gate's output files, for people and for CI."""

from __future__ import annotations

from pathlib import Path

from conformance.gate.badge import badge
from conformance.gate.decide import Decision
from conformance.gate.junit import junit
from conformance.gate.summary import document
from conformance.report.render import markdown
from conformance.store.files import write_text

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
