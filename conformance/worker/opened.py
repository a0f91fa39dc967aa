"""Which files a scenario opens and which modules it imports, besides what is installed.

Python tells of every file that it opens (an audit event). What a scenario's module imports is
found in its source, for it may have been imported before.
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
from pathlib import Path
from types import ModuleType
from typing import Any

from conformance.scenario import Scenario
from conformance.store.opened import digests

_WRITES = os.O_WRONLY | os.O_RDWR
#: Where no input of a scenario is.
_SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/run")


class Opened:
    """Hears of every file that is opened from now on. `outside` are folders that hold no inputs,
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
        """A case begins."""
        self._paths = set()

    def keep_shared(self) -> None:
        """The scenarios have been imported: every cell depends on what was read for it, but on the
        scenarios themselves, each of which is keyed by its own file.
        """
        self._shared = {
            path
            for path in self._take()
            if path.suffix != ".py" or path.parent not in self._folders or path.name[0] == "_"
        }

    def since(self, scenario: Scenario | None) -> dict[str, str]:
        """What a case depended on, with digests: the files that were opened since it began, and
        the modules that its scenario imports.
        """
        module = sys.modules.get(scenario.run.__module__) if scenario else None
        files = self._shared | self._take() | self.imported_by(module)
        return digests(files, self._folders)

    def _take(self) -> set[Path]:
        """The files that were read since the last time."""
        paths, self._paths = self._paths, set()
        found = {path for text in paths if (path := _source(text)) is not None}
        return {path for path in found if self._counts(path)}

    def imported_by(self, module: ModuleType | None) -> set[Path]:
        """The files of the modules that this one imports, and of those that they do."""
        found: set[Path] = set()
        waiting = [module]
        while waiting:
            importer = waiting.pop()
            for other in _imports(importer) if importer is not None else ():
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
    """The file, of compiled code its source."""
    with suppress(ValueError, OSError):
        if text.endswith(".pyc"):
            return Path(importlib.util.source_from_cache(text))
        return Path(text).resolve()
    return None


def _imports(module: ModuleType) -> Iterator[ModuleType]:
    """The modules that a module's source names, wherever in it, as far as they are imported."""
    path = getattr(module, "__file__", None)
    if not path:
        return
    try:
        tree = ast.parse(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError, SyntaxError):
        return
    package = module.__package__ or ""
    for node in ast.walk(tree):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            with suppress(ImportError, ValueError):
                base = importlib.util.resolve_name(base, package) if node.level else base
            names = [base, *(f"{base}.{alias.name}" for alias in node.names)]
        for name in names:
            for end in range(name.count(".") + 1):
                found = sys.modules.get(name.rsplit(".", end)[0])
                if found is not None:
                    yield found
