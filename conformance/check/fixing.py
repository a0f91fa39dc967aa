"""Verified edits written into the user's files, with what they were kept beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from conformance.check.checked import Checked
from conformance.errors import ConformanceError


def write(checked: Sequence[Checked], texts: Mapping[str, str]) -> Iterator[str]:
    """Write each file's verified version, and yield what was done. `texts` are the files as they
    were checked.

    Raises ConformanceError for a file that has changed since, and for one whose engines have
    different edits.
    """
    fixed: dict[str, set[str]] = {}
    for one in checked:
        if one.fixed:
            fixed.setdefault(one.file, set()).add(one.fixed)
    for name, versions in fixed.items():
        path = Path(name)
        if len(versions) > 1:
            raise ConformanceError(
                "the engines want different edits",
                path=path,
                remedy="check one engine at a time, with -b",
            )
        if path.read_text(encoding="utf-8") != texts[name]:
            raise ConformanceError(
                "has changed since it was checked, and was left as it is",
                path=path,
                remedy="check it again",
            )
        backup = _backup(path)
        backup.write_text(texts[name], encoding="utf-8")
        path.write_text(versions.pop(), encoding="utf-8")
        yield f"fixed {path.name}; what it was is in {backup.name}"


def _backup(path: Path) -> Path:
    """A name beside the file that is not taken."""
    first = path.with_name(f"{path.name}.orig")
    number = 1
    found = first
    while found.exists():
        number += 1
        found = path.with_name(f"{path.name}.orig{number}")
    return found
