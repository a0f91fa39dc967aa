"""The corpus: stored programs that are replayed first and must fail as recorded."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conformance.commands.fuzz.causes import ProgramDifference, slug
from conformance.runner.store.files import read_record, write_record
from conformance.spec.programs import Program, check
from conformance.spec.records import record


@record()
class CorpusEntry:
    """A program on a model, and its failures by backend; it passes on the others. `why` explains
    the cause: the reason in known.yaml, or a person's finding.
    """

    model: str
    program: Program
    fails: Mapping[str, str]
    cause: str
    why: str = ""
    diagnosis: str = ""


def read(folder: Path) -> dict[str, CorpusEntry]:
    """Return the entries by file name, sorted. Raises ConformanceError for an invalid file."""
    entries = {}
    for path in sorted(folder.glob("*.json")):
        entry = read_record(CorpusEntry, path)
        if entry is not None:
            check(entry.program)
            entries[path.stem] = entry
    return entries


def keep(folder: Path, difference: ProgramDifference) -> Path:
    """Store a difference as an entry. Return its file."""
    path = folder / f"{slug(difference.cause)}.json"
    entry = CorpusEntry(
        model=difference.model,
        program=difference.program,
        fails={failure.backend: failure.kind for failure in difference.failures},
        cause=difference.cause,
        why=difference.explained,
        diagnosis=next(filter(None, (failed.diagnosis for failed in difference.failures)), ""),
    )
    write_record(path, entry)
    return path
