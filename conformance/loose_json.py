"""JSON that is no record, from a file or a text that anybody may have written.

The only place that hands such a text to a parser: what is no JSON, what is nested too deeply and
what cannot be read are one kind of error, and so nobody forgets one of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from conformance import regular_file
from conformance.errors import ConformanceError

_REMEDY = "the file is damaged: write it anew, or remove it"


def parsed(text: str | bytes) -> Any:
    """Raises ValueError, and nothing else, for what is no JSON."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def read(path: Path, *, remedy: str = _REMEDY) -> Any:
    """What a file holds. Raises ConformanceError for one that is absent or holds no JSON."""
    try:
        return parsed(regular_file.read_bytes(path))
    except (OSError, ValueError) as error:
        words = getattr(error, "strerror", None) or error
        raise ConformanceError(f"cannot be read: {words}", path=path, remedy=remedy) from error


def mapping(path: Path) -> dict[str, Any]:
    """The mapping in a file that may be absent or damaged: then it is empty."""
    try:
        found = read(path)
    except ConformanceError:
        return {}
    return found if isinstance(found, dict) else {}
