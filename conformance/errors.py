"""The error class for users, the text for other exceptions, and the exit codes for scripts."""

from __future__ import annotations

import traceback
from enum import IntEnum
from pathlib import Path


class ExitCode(IntEnum):
    """The exit status of `conformance`."""

    OK = 0
    UNEXPECTED = 1
    BAD_INPUT = 2
    HARNESS = 3
    INTERRUPTED = 130


class ConformanceError(Exception):
    """An error that the user can act on: what is wrong, where, and how to fix it.

    Only `cli.main` turns it into text and an exit code.
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
    """Return an exception's type and message. An `assert` usually has no message: return the source
    line that raised it instead.
    """
    words = str(error).strip()
    if not words and isinstance(error, AssertionError) and error.__traceback__ is not None:
        words = traceback.extract_tb(error.__traceback__)[-1].line or ""
    return f"{type(error).__name__}: {words}" if words else type(error).__name__
