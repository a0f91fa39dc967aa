"""Read a text file that the user names. It may be any file, so its size is limited."""

from __future__ import annotations

from pathlib import Path

from conformance.errors import ConformanceError
from conformance.spec import regular_file

#: More than any list of cells or file of code that a person writes.
MOST_BYTES = 1 << 24


def read(path: Path, *, most: int = MOST_BYTES, remedy: str = "name a file that exists") -> str:
    """Return the text. Raises ConformanceError if it is unreadable, too long, or not UTF-8."""
    try:
        data = regular_file.read_bytes(path, most + 1)
    except (OSError, ValueError) as error:  # a name with a null byte is a ValueError
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
