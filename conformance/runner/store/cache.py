"""Cache of finished observations by content, so that none is computed twice.

An entry holds a cell's files with their digests, and is put in place by one rename. Files are
linked, not copied, if the file system can; a file that was edited in a run no longer has its
digest. A damaged entry is dropped and counts as absent.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Sequence
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.runner.store.files import read_record, replacing, write_text
from conformance.runner.store.folder import GroupFolder
from conformance.runner.store.keys import are_unchanged
from conformance.spec import loose_json
from conformance.spec.cached_folder import file_digest
from conformance.spec.records import Group, Outcome, Status

_CELL = ("outcome.json", "observations.safetensors")
_GROUP = "group.json"
_FILES = (*_CELL, _GROUP)
_DIGESTS = "digests.json"


class ObservationCache:
    """Entries in `folder`, named by `keys.observation_key`."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def entry(self, key: str) -> Path:
        return self.folder / key[:2] / key

    def fetch(
        self, key: str, group: GroupFolder, case: str, folders: Sequence[Path] = ()
    ) -> Group | None:
        """Put the observation into the run; return the group that made it.

        None, with nothing changed, if there is no complete entry, or a file that the scenario
        opened has changed since; `folders` are the scenarios'.
        """
        entry = self.entry(key)
        stored = self._checked(entry, folders)
        if stored is None:
            shutil.rmtree(entry, ignore_errors=True)
            return None
        cell = group.cell(case)
        cell.mkdir(parents=True, exist_ok=True)
        try:
            for name in reversed(_CELL):  # the outcome last, as a worker writes them
                _link(entry / name, cell / name)
            os.utime(entry)  # `conformance clean` removes what has not been used for long
        except FileNotFoundError:  # removed in the meantime by `conformance clean`
            group.drop_cell(case)
            return None
        return stored

    def _checked(self, entry: Path, folders: Sequence[Path]) -> Group | None:
        try:
            digests = loose_json.mapping(entry / _DIGESTS)
            whole = all(file_digest(entry / name) == digests.get(name) for name in _FILES)
            outcome = read_record(Outcome, entry / _CELL[0])
            whole = whole and outcome is not None and are_unchanged(outcome.opened, folders)
            return read_record(Group, entry / _GROUP) if whole else None
        except (OSError, ConformanceError):
            return None

    def keep(self, key: str, group: GroupFolder, case: str) -> bool:
        """Copy a finished cell into the cache; return False if it observed nothing."""
        outcome: Outcome | None = group.outcome(case)
        if outcome is None or outcome.status is not Status.OK or group.group() is None:
            return False
        entry = self.entry(key)
        if entry.exists():
            return True
        part = self.folder / f".{secrets.token_hex(8)}.part"
        part.mkdir(parents=True)
        try:
            for name in _CELL:
                _link(group.cell(case) / name, part / name)
            shutil.copyfile(group.path / _GROUP, part / _GROUP)  # the runner rewrites it
            digests = {name: file_digest(part / name) for name in _FILES}
            write_text(part / _DIGESTS, json.dumps(digests))
            entry.parent.mkdir(parents=True, exist_ok=True)
            part.rename(entry)
        except OSError:
            shutil.rmtree(part, ignore_errors=True)
            return entry.exists()
        return True


def _link(source: Path, target: Path) -> None:
    with replacing(target) as part:
        try:
            os.link(source, part)
        except OSError:  # another file system, or too many links
            shutil.copyfile(source, part)
