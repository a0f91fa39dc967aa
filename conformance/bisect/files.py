"""The files of a bisect's report: for scripts, for people, for a browser."""

from __future__ import annotations

from pathlib import Path

from conformance.bisect.page import page
from conformance.bisect.report import Report
from conformance.bisect.show import markdown
from conformance.bisect.state import BisectFolder
from conformance.records import to_json
from conformance.store.files import write_text


def write(report: Report, folder: BisectFolder) -> Path:
    """report.json, report.md and the page, whose path is returned."""
    write_text(folder.path / "report.json", to_json(report, indent=1) + "\n")
    write_text(folder.path / "report.md", markdown(report))
    write_text(folder.path / "index.html", page(report))
    return folder.path / "index.html"
