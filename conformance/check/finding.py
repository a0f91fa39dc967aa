"""One thing that differs, and the lines that change it."""

from __future__ import annotations

from conformance.records import record


@record()
class Edit:
    """Lines of the user's file from `line` on, as they are and as they are suggested.

    `verified`: with all verified edits of an answer the file was run, and agrees.
    """

    line: int
    before: str
    after: str = ""
    verified: bool = False


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
