"""Find the files in its own folder that a user's Python file needs."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.spec.inputs import text_file

#: Possible file names: below the file's folder, and not hidden.
_FILE = re.compile(r"(?:(?![.])[\w.+ -]{1,100}/){0,4}(?![.])[\w.+ -]{1,100}")

#: Named files with more bytes than this are ignored.
_LARGE = 64 << 20


def needed_files(path: Path) -> list[str]:
    """Return the name of a file and of the files in its folder that it needs: modules that it
    imports, directly or not, and data files that any of them names, such as vectors or prompts.
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
    """Yield possible names of files that a Python file imports or loads."""
    try:
        tree = ast.parse(text_file.read(path))
    except (ConformanceError, MemoryError, RecursionError, SyntaxError, ValueError):
        return  # Python reports the error when the file is run
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.level < 2:
            names = [".".join(filter(None, (node.module, alias.name))) for alias in node.names]
        elif isinstance(node, ast.Constant) and _FILE.fullmatch(str(node.value)):
            yield str(node.value)
        for name in names:  # the file's folder may be the package
            yield f"{name.removeprefix(f'{path.parent.name}.').partition('.')[0]}.py"
