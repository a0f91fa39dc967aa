# ruff: noqa: PTH116, PTH118, PTH123
"""What is installed in an interpreter's environment, as one digest: its files, not its versions.

    python installed_files.py STAMPS

It is run by the interpreters of other environments, which need not have this package, and so needs
the standard library alone. Paths are texts: of forty thousand files they are several times as
quick. STAMPS is a folder that keeps the digest of an environment with the
sizes and times of its files, so that contents are read again only after a change.

Source files count by their contents. Large ones (kernels) count by the hash that their
distribution's RECORD has, unless they were changed after it was written. What an editable
distribution or PYTHONPATH points to counts as source files do.
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
from importlib import metadata
from pathlib import Path
from urllib.parse import unquote, urlparse

#: Files that are larger than this count by their RECORD.
_LARGE = 1 << 20
#: A package whose observing parts have a digest of their own (`keys.sources_digest`).
_OWN = "conformance"
#: Of what is not installed but pointed to, what a module is.
_MODULES = (".py", ".so", ".pyd")


def digest(stamps: Path | None = None) -> str:
    """Changes with whatever is installed, by contents."""
    files = sorted(_files())
    stamp = hashlib.sha256("\n".join(map(repr, files)).encode()).hexdigest()
    kept = stamps / f"{_name()}.json" if stamps else None
    if kept is not None:
        try:
            known = json.loads(kept.read_text())
            if known["stamp"] == stamp:
                return str(known["digest"])
        except (OSError, ValueError, KeyError, TypeError):
            pass
    found = _contents([path for path, *_ in files])
    if kept is not None:
        try:
            kept.parent.mkdir(parents=True, exist_ok=True)
            part = kept.with_name(f".{kept.name}.{os.getpid()}")
            part.write_text(json.dumps({"stamp": stamp, "digest": found}))
            part.replace(kept)
        except OSError:  # it is computed again
            pass
    return found


def _name() -> str:
    return hashlib.sha256("\0".join([sys.prefix, *_roots()]).encode()).hexdigest()[:24]


def _roots() -> list[str]:
    """The folders that modules are imported from: installed ones, and what points elsewhere."""
    found = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib")}
    found |= {path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path}
    for each in metadata.distributions():
        if (each.metadata["Name"] or "").lower() != _OWN:
            found |= set(_editable(each))
    return sorted(str(Path(path).resolve()) for path in found if Path(path).is_dir())


def _editable(distribution: metadata.Distribution) -> Iterator[str]:
    """The tree of a distribution that was installed as editable."""
    try:
        told = json.loads(distribution.read_text("direct_url.json") or "{}")
    except ValueError:
        return
    url = urlparse(str(told.get("url", "")))
    if (told.get("dir_info") or {}).get("editable") and url.scheme == "file":
        yield unquote(url.path)


def _files() -> Iterator[tuple[str, int, int, int]]:
    """Path, size, time and inode of every file that can be imported or read beside a module."""
    places = {str(Path(sysconfig.get_path(name)).resolve()) for name in ("purelib", "platlib")}
    for root in _roots():
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


def _contents(paths: list[str]) -> str:
    """By each path within its root, what it holds."""
    records = _records()
    roots = sorted(_roots(), key=len, reverse=True)
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
    """Of every file what its distribution's RECORD says, and when that was written."""
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
