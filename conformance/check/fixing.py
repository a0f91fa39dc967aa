"""Write verified edits into the user's files, and keep a backup of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import count
from pathlib import Path

from conformance.check.checked import Checked
from conformance.errors import ConformanceError


def write(checked: Sequence[Checked], texts: Mapping[str, str]) -> Iterator[str]:
    """Write each file's verified version, and yield a message for it. `texts` are as checked.

    Raises ConformanceError if a file has changed since, or if engines need different edits.
    """
    for name, text in texts.items():
        path = Path(name)
        versions = {one.fixed for one in checked if one.file == name and one.fixed}
        if not versions:
            continue
        if len(versions) > 1:
            words, remedy = "engines want different edits", "check one engine at a time, with -b"
            raise ConformanceError(words, path=path, remedy=remedy)
        if path.read_text(encoding="utf-8") != text:
            words = "has changed since it was checked, and was left as it is"
            raise ConformanceError(words, path=path, remedy="check it again")
        names = (f"{path.name}.orig{number if number > 1 else ''}" for number in count(1))
        backup = next(path.with_name(one) for one in names if not path.with_name(one).exists())
        backup.write_text(text, encoding="utf-8")
        path.write_text(versions.pop(), encoding="utf-8")
        yield f"fixed {path.name}; what it was is in {backup.name}"
