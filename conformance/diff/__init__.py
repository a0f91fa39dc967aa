"""Compare two judged runs: new failures, fixes, and margins that shrank."""

from conformance.diff.compare import Change, Diff, Kind, compare
from conformance.diff.document import document, headline

__all__ = ["Change", "Diff", "Kind", "compare", "document", "headline"]
