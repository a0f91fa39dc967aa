"""A text that the user names, read as far as a text of its kind goes: it may be any file."""

from __future__ import annotations

from pathlib import Path

from conformance import regular_file
from conformance.errors import ConformanceError

#: More than any list of cells, or file of code, that somebody wrote.
MOST_BYTES = 1 << 24


def read(path: Path, *, most: int = MOST_BYTES, remedy: str = "name a file that exists") -> str:
    """Raises ConformanceError for what cannot be read, is longer than `most`, or is no UTF-8."""
    try:
        data = regular_file.read_bytes(path, most + 1)
    except (OSError, ValueError) as error:  # a name with a zero byte is a ValueError
        words = getattr(error, "strerror", None) or error
        raise ConformanceError(f"cannot be read: {words}", path=path, remedy=remedy) from error
    if len(data) > most:
        raise ConformanceError(
            f"has more than {most >> 10} KiB", path=path, remedy="name a file that is smaller"
        )
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ConformanceError(
            f"is no text in UTF-8: byte {data[error.start]:#04x} at {error.start}",
            path=path,
            line=data.count(b"\n", 0, error.start) + 1,
            remedy="write it as plain text",
        ) from error
