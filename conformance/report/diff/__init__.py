"""Compare two judged runs: new failures, fixes, and margins that shrank."""

from conformance.report.diff.compare import CellChange, ChangeKind, Diff, compare
from conformance.report.diff.document import changes_between, changes_since_last, document, headline

__all__ = [
    "CellChange",
    "ChangeKind",
    "Diff",
    "changes_between",
    "changes_since_last",
    "compare",
    "document",
    "headline",
]
