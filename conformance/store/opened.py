"""The files that a scenario opened, which a cell depends on in addition to its key.

A path in a scenario folder is stored relative to it (`0:vectors/one.pt`: the first folder's), so
that a copy of the folder uses its own file.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path


def digests(paths: Iterable[Path], folders: Sequence[Path]) -> dict[str, str]:
    """Return the digest of each readable file, by its name."""
    found = {}
    for path in sorted(set(paths)):
        content = _digest(path)
        if content:
            found[_name(path, folders)] = content
    return found


def unchanged(opened: Mapping[str, str], folders: Sequence[Path]) -> bool:
    """Return whether all these files have the same contents as before."""
    return all(_digest(_path(name, folders)) == content for name, content in opened.items())


def _name(path: Path, folders: Sequence[Path]) -> str:
    for index, folder in enumerate(folders):
        if path.is_relative_to(folder.resolve()):
            return f"{index}:{path.relative_to(folder.resolve())}"
    return str(path)


def _path(name: str, folders: Sequence[Path]) -> Path:
    index, colon, rest = name.partition(":")
    if colon and index.isdigit():
        return folders[int(index)] / rest if int(index) < len(folders) else Path(rest)
    return Path(name)


def _digest(path: Path) -> str:
    """Return the file's digest, "" if it cannot be read."""
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return ""
