"""Syncing the files of a group's folder to the driver as they are written."""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

from conformance.runner.cluster.messages import FilePiece
from conformance.runner.store import GroupFolder

#: The bytes of a file sent at a time, and the seconds between checks for more.
PIECE = 4 << 20
_EVERY = 0.2

#: The files of a group's folder. The driver writes no others, whatever a machine sends.
_OURS = re.compile(
    r"log\.txt|events\.jsonl|group\.json|job(\.\d+)?\.json"
    r"|cells/[A-Za-z0-9_][\w.+~=,@-]*/(outcome\.json|observations\.safetensors)",
    re.ASCII,
)


class FileSync:
    """On a machine: regularly sends what was added to a group's folder."""

    def __init__(self, folder: Path, send: Callable[[FilePiece], None]) -> None:
        self._folder = GroupFolder(folder)
        self._send = send
        self._offsets: dict[Path, int] = {}
        self._sent: dict[Path, object] = {}
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look_often, daemon=True)
        self._failure: Exception | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Send the rest. Raises the exception that stopped the thread."""
        self._ended.set()
        self._thread.join()
        if self._failure is not None:
            raise self._failure
        self.look()

    def _look_often(self) -> None:
        try:
            while not self._ended.wait(_EVERY):
                self.look()
        except Exception as error:  # noqa: BLE001 - raised again when the group ends
            self._failure = error

    def look(self) -> None:
        for path in (self._folder.log, self._folder.events):
            self._grown(path)
        for outcome in sorted(self._folder.path.glob("cells/*/outcome.json")):
            if self._sent.get(outcome) == _state(outcome):
                continue
            # The outcome comes last, as a worker writes it.
            self._whole(outcome.with_name("observations.safetensors"))
            self._whole(outcome)
        for path in sorted(self._folder.path.glob("*.json")):
            if path.name != "keys.json":  # the driver has its own, for its files
                self._whole(path)

    def _grown(self, path: Path) -> None:
        with suppress(FileNotFoundError), path.open("rb") as file:
            if path not in self._offsets:  # an empty log counts too
                self._offsets[path] = 0
                self._send(FilePiece(self._name(path), 0, b"", grows=True))
            file.seek(self._offsets[path])
            for data in iter(lambda: file.read(PIECE), b""):
                self._send(FilePiece(self._name(path), self._offsets[path], data, grows=True))
                self._offsets[path] += len(data)

    def _whole(self, path: Path) -> None:
        with suppress(FileNotFoundError):
            state = _state(path)
            if self._sent.get(path) == state:
                return
            # Files are replaced by a rename and never changed, so an open one is stable.
            with path.open("rb") as file:
                size, last = path.stat().st_size, False
                while not last:
                    offset, data = file.tell(), file.read(PIECE)
                    last = offset + len(data) >= size or not data
                    self._send(FilePiece(self._name(path), offset, data, last))
            self._sent[path] = state

    def _name(self, path: Path) -> str:
        return path.relative_to(self._folder.path).as_posix()


def _state(path: Path) -> object:
    found = path.stat()
    return found.st_ino, found.st_mtime_ns, found.st_size


class Arriving:
    """On the driver: puts one machine's files into the group's folder, after existing content."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._folder.mkdir(parents=True, exist_ok=True)
        self._begin = {
            name: (folder / name).stat().st_size if (folder / name).is_file() else 0
            for name in ("log.txt", "events.jsonl")
        }

    def take(self, part: FilePiece) -> None:
        """Write one part. Raises ValueError for a path no group has, OSError on a full disk."""
        if _OURS.fullmatch(part.path) is None:
            raise ValueError(f"no group has a file {part.path!r}")
        path = self._folder / part.path
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.parent.resolve() != self._folder.resolve() / Path(part.path).parent:
            raise ValueError(f"{part.path!r} lies elsewhere")
        if part.grows and part.path in self._begin:
            _write(path, self._begin[part.path] + part.offset, part.data)
            return
        coming = path.with_name(f".{path.name}.coming.part")
        if part.offset == 0:
            coming.unlink(missing_ok=True)
        _write(coming, part.offset, part.data)
        if part.last:
            coming.replace(path)


def _write(path: Path, offset: int, data: bytes) -> None:
    """Write at the offset, which may not leave a gap. Links are not followed."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o644)
    with os.fdopen(descriptor, "wb") as file:
        if not 0 <= offset <= os.fstat(descriptor).st_size:
            raise ValueError(f"a piece of {path.name} is missing before byte {offset}")
        file.seek(offset)
        file.write(data)
