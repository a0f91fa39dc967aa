"""The files of its own folder that a Python file of a user's needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.inputs import text_file

#: What may be the name of a file: below its folder, and no hidden one.
_FILE = re.compile(r"(?:(?![.])[\w.+ -]{1,100}/){0,4}(?![.])[\w.+ -]{1,100}")

#: Bytes beyond which a file that is named is not counted.
_LARGE = 64 << 20


def needed_files(path: Path) -> list[str]:
    """Return the names of a file and of those of its folder that it imports, that those import,
    and that any of them names in its text, as what it loads: vectors, lists of prompts.
    """
    found: list[str] = []
    waiting = [path.name]
    while waiting:
        name = waiting.pop()
        place = path.parent / name
        if name not in found and place.is_file() and place.stat().st_size <= _LARGE:
            found.append(name)
            waiting += _named_in(place) if place.suffix == ".py" else ()
    return found


def _named_in(path: Path) -> Iterator[str]:
    """What may be the names of files that a file of Python imports, or loads."""
    try:
        tree = ast.parse(text_file.read(path))
    except (ConformanceError, MemoryError, RecursionError, SyntaxError, ValueError):
        return  # Python says what is wrong with it where it is run
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level < 2:
            names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
        elif isinstance(node, ast.Constant) and _FILE.fullmatch(str(node.value)):
            yield str(node.value)
        for name in names:  # its folder may be the package
            yield f"{name.removeprefix(f'{path.parent.name}.').partition('.')[0]}.py"
