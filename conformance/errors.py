"""The one error users see, what is said of all others, and the exit codes scripts can rely on."""

from __future__ import annotations

import traceback
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """What `conformance` says to the shell."""

    OK = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    HARNESS = 3
    INTERRUPTED = 130


class ConformanceError(Exception):
    """Something the user can act on: what is wrong, where, and what mends it.

    `cli.main` is the only place that turns it into text and an exit code.
    """

    def __init__(
        self,
        message: str,
        *,
        remedy: str = "",
        path: Path | None = None,
        line: int | None = None,
        code: ExitCode = ExitCode.BAD_INPUT,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.remedy = remedy
        self.path = path
        self.line = line
        self.code = code

    def __str__(self) -> str:
        place = ""
        if self.path is not None:
            place = f"{self.path}:{self.line}: " if self.line else f"{self.path}: "
        remedy = f"\n  → {self.remedy}" if self.remedy else ""
        return f"{place}{self.message}{remedy}"


def described(error: BaseException) -> str:
    """An exception's type and message. An `assert` has no message as a rule: then the line of the
    source that raised it.
    """
    words = str(error).strip()
    if not words and isinstance(error, AssertionError) and error.__traceback__ is not None:
        words = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
