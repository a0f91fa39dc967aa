"""Write the files of a bisect's report: for scripts, for people and for a browser."""

from __future__ import annotations

from pathlib import Path

from conformance.bisect.presentation.document import document
from conformance.bisect.presentation.report import Report
from conformance.bisect.state import BisectFolder
from conformance.records import to_json
from conformance.report.render import markdown, page
from conformance.store.files import write_text


def write(report: Report, folder: BisectFolder) -> Path:
    """Write report.json, report.md and the page. Return the page's path."""
    page_document = document(report)
    write_text(folder.path / "report.json", to_json(report, indent=1) + "\n")
    write_text(folder.path / "report.md", markdown.document(page_document))
    write_text(folder.path / "index.html", page.document(page_document))
    return folder.path / "index.html"
