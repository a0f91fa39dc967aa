"""Compare two judged runs: new failures, fixes, and margins that shrank."""

from conformance.diff.compare import CellChange, ChangeKind, Diff, compare
from conformance.diff.document import document, headline

__all__ = ["CellChange", "ChangeKind", "Diff", "compare", "document", "headline"]
