"""One thing that differs, and the line that mends it."""

from __future__ import annotations

from conformance.check.edits import Edit
from conformance.records import record


@record()
class Finding:
    """One thing that differs. `kind` is for programs, `name` the user's own for the value."""

    kind: str
    words: str
    name: str = ""
    layer: int | None = None
    step: int = 0
    prompt: int = 0
    edit: Edit | None = None
