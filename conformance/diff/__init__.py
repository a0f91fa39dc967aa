"""Two judged runs side by side: what broke, what was mended, what came closer to breaking."""

from conformance.diff.compare import Change, Diff, Kind, compare
from conformance.diff.page import page
from conformance.diff.text import headline, markdown, show

__all__ = ["Change", "Diff", "Kind", "compare", "headline", "markdown", "page", "show"]
