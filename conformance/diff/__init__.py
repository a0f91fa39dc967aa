"""Two judged runs side by side: what broke, what was mended, what came closer to breaking."""

from conformance.diff.compare import Change, Diff, Kind, compare
from conformance.diff.document import document, headline

__all__ = ["Change", "Diff", "Kind", "compare", "document", "headline"]
