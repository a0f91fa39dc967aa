# ruff: noqa: PTH116, PTH118, PTH123
"""The digest of an interpreter's environment: of its files, not its versions.

    python installed_files.py STAMPS

It is run by the interpreters of other environments, which may lack this package, so it uses only
the standard library. Paths are strings, which is several times faster for forty thousand files. The
folder STAMPS keeps an environment's digest with the sizes and times of its files, so contents are
read again only after a change.

Source files count by their contents. Large ones (kernels) count by the hash in their distribution's
RECORD, unless they were changed after it was written. Targets of editable distributions and
PYTHONPATH count as source files do.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import suppress
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

#: Larger files count by their RECORD.
_LARGE = 1 << 20
#: This package: `keys.sources_digest` covers the parts that observe.
_OWN = "conformance"
#: Suffixes of modules in folders outside the installation.
_MODULES = (".py", ".so", ".pyd")


def digest(stamps: Path | None = None) -> str:
    """Return a digest that changes with the contents of anything installed."""
    roots = _roots()
    files = sorted(_files(roots))
    stamp = _hash("\n".join(map(repr, files)))
    name = _hash("\0".join([sys.prefix, *roots]))[:24]
    kept = stamps / f"{name}.json" if stamps else None
    if kept is not None:
        with suppress(OSError, ValueError, KeyError, TypeError):
            known = json.loads(kept.read_text())
            if known["stamp"] == stamp:
                return str(known["digest"])
    found = _contents([path for path, *_ in files], roots)
    if kept is not None:
        with suppress(OSError):  # it is computed again next time
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_name(f".{kept.name}.{os.getpid()}")
            part.write_text(json.dumps({"stamp": stamp, "digest": found}))
            part.replace(kept)
    return found


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _roots() -> list[str]:
    """Return the folders that modules are imported from: installed, editable or in PYTHONPATH."""
    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found |= {path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    for each in metadata.distributions():
        if (each.metadata["Name"] or "").lower() != _OWN:
            found |= set(_editable(each))
    return sorted(str(Path(path).resolve()) for path in found if Path(path).is_dir())


def _editable(distribution: metadata.Distribution) -> Iterator[str]:
    """Yield the source tree of an editable distribution."""
    try:
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return
    url = urlparse(str(told.get("url", "")))
    if (told.get("dir_info") or {}).get("editable") and url.scheme == "file":
        yield unquote(url.path)


def _files(roots: list[str]) -> Iterator[tuple[str, int, int, int]]:
    """Yield path, size, time and inode of every file that can be imported or read by a module."""
    places = {str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib")}
    for root in roots:
        for folder, names, files in os.walk(root):
            names[:] = sorted(
                name
                for name in names
                if name != "__pycache__"
                and not name.startswith((".", f"{_OWN}-"))
                and (folder, name) != (root, _OWN)
            )
            for name in files:
                if name.startswith(".") or name.endswith((".pyc", ".log")):
                    continue
                if root not in places and not name.endswith(_MODULES):
                    continue
                path = os.path.join(folder, name)
                try:
                    stat = os.stat(path)
                except OSError:
                    continue
                yield path, stat.st_size, stat.st_mtime_ns, stat.st_ino


def _contents(paths: list[str], roots: list[str]) -> str:
    """Hash each file's path within its root and its content."""
    records = _records()
    roots = sorted(roots, key=len, reverse=True)
    hashed = hashlib.sha256()
    for path in paths:
        root = next(root for root in roots if path.startswith(root + os.sep))
        hashed.update(f"{os.path.relpath(path, root)}\0{_content(path, records)}\n".encode())
    return hashed.hexdigest()


def _content(path: str, records: dict[str, tuple[str, int]]) -> str:
    try:
        stat = os.stat(path)
        told, written = records.get(path, ("", 0))
        if told and stat.st_size > _LARGE and stat.st_mtime_ns <= written:
            return told
        with open(path, "rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return "unreadable"


def _records() -> dict[str, tuple[str, int]]:
    """Return every file's hash in its distribution's RECORD, and when that was written."""
    found: dict[str, tuple[str, int]] = {}
    for each in metadata.distributions():
        text = each.read_text("RECORD")
        if not text:
            continue
        base = Path(str(each.locate_file("")))
        own = [row for row in csv.reader(io.StringIO(text)) if len(row) == 3]
        record = next((row[0] for row in own if row[0].endswith(".dist-info/RECORD")), "")
        try:
            written = os.stat(base / record).st_mtime_ns
        except OSError:
            continue
        for name, told, _ in own:
            found[os.path.join(base, name)] = (told, written)
    return found


if __name__ == "__main__":
    print(digest(Path(sys.argv[1]) if len(sys.argv) > 1 else None))  # noqa: T201
