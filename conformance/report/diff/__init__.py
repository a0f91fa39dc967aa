"""Compare two judged runs: new failures, fixes, and margins that shrank."""

from conformance.report.diff.compare import CellChange, ChangeKind, Diff, compare
from conformance.report.diff.show import changes_since_last, document, headline, section
