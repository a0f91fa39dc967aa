"""Parse JSON that is not a record, from a file or text of unknown origin.

All such text is parsed here, so that invalid JSON, deep nesting and unreadable files always give
one kind of error.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance.errors import ConformanceError
from conformance.spec import regular_file

_REMEDY = "the file is damaged: write it anew, or remove it"


def parsed(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError, and nothing else, for invalid text."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read(path: Path, *, remedy: str = _REMEDY) -> Any:
    """Return a file's contents. Raises ConformanceError if it is absent or not JSON."""
    try:
        return parsed(regular_file.read_bytes(path))
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise ConformanceError(f"cannot be read: {words}", path=path, remedy=remedy) from error


def mapping(path: Path) -> dict[str, Any]:
    """Return the mapping in a file; empty if the file is absent or damaged."""
    try:
        found = read(path)
    except ConformanceError:
        return {}
    return found if isinstance(found, dict) else {}
