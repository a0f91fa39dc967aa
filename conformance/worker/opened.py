"""Records the files that a scenario opens and the modules it imports, except installed ones.

Python reports every file that it opens (an audit event). A module's imports are found in its
source, since they may have been imported before.
"""

from __future__ import annotations

import ast
import importlib.util
import os
import sys
import sysconfig
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.runner.store.keys import opened_digests
from conformance.spec.scenario import Scenario

_WRITES = os.O_WRONLY | os.O_RDWR
#: Folders that hold no scenario's input.
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/run")


class Opened:
    """Records every file that is opened from now on. `outside` are folders without inputs,
    `folders` those of the scenarios.
    """

    def __init__(self, outside: Collection[Path], folders: Sequence[Path]) -> None:
        self._begun = time.time()
        self._paths: set[str] = set()
        self._shared: set[Path] = set()
        paths = {sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")}
        paths |= {*_SYSTEM, str(Path(__file__).parent.parent), *map(str, outside)}
        self._outside = tuple(str(Path(path).resolve()) + os.sep for path in paths if path)
        self._folders = tuple(folder.resolve() for folder in folders)
        sys.addaudithook(self._hear)

    def _hear(self, event: str, arguments: Any) -> None:
        if event == "open" and isinstance(arguments[0], str):
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if not flags & _WRITES:
                self._paths.add(arguments[0])

    def begin(self) -> None:
        """Begin a case."""
        self._paths = set()

    def keep_shared(self) -> None:
        """Record the files read while importing the scenarios as inputs of every cell. The
        scenarios' own files are excluded, since each cell is keyed by its scenario's file.
        """
        self._shared = {
            path
            for path in self._take()
            if path.suffix != ".py" or path.parent not in self._folders or path.name[0] == "_"
        }

    def since(self, scenario: Scenario | None) -> dict[str, str]:
        """Return a case's inputs with their digests: the files opened since it began and the
        modules that its scenario imports.
        """
        module = sys.modules.get(scenario.run.__module__) if scenario else None
        files = self._shared | self._take() | self.imported_by(module)
        return opened_digests(files, self._folders)

    def _take(self) -> set[Path]:
        """Return the files that were read since the last call."""
        paths, self._paths = self._paths, set()
        found = map(_source, paths)
        return {path for path in found if path is not None and self._counts(path)}

    def imported_by(self, module: ModuleType | None) -> set[Path]:
        """Return the files of the modules that this one imports, directly or indirectly."""
        found: set[Path] = set()
        waiting = [module] if module is not None else []
        while waiting:
            for other in _imports(waiting.pop()):
                path = Path(str(getattr(other, "__file__", None) or "/"))
                if path.suffix == ".py" and path not in found and self._counts(path):
                    found.add(path)
                    waiting.append(other)
        return {path.resolve() for path in found}

    def _counts(self, path: Path) -> bool:
        with suppress(OSError):
            path = path.resolve()
            fresh = path.stat().st_mtime >= self._begun
            return path.is_file() and not fresh and not str(path).startswith(self._outside)
        return False


def _source(text: str) -> Path | None:
    """Return the path; for compiled code, its source."""
    with suppress(ValueError, OSError):
        if text.endswith(".pyc"):
            return Path(importlib.util.source_from_cache(text))
        return Path(text).resolve()
    return None


def _imports(module: ModuleType) -> Iterator[ModuleType]:
    """Yield the modules that a module's source imports, also inside functions."""
    path = getattr(module, "__file__", None)
    for name in _imported_names(Path(path), module.__package__ or "") if path else ():
        for end in range(name.count(".") + 1):
            found = sys.modules.get(name.rsplit(".", end)[0])
            if found is not None:
                yield found


@cache
def _imported_names(path: Path, package: str) -> tuple[str, ...]:
    """Return the names of modules, and of what is imported from them, in a source of a package."""
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return ()
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            with suppress(ImportError, ValueError):
                base = importlib.util.resolve_name(base, package) if node.level else base
            names += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return tuple(names)
