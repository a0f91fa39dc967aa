"""Programs that are kept: each is replayed first, and must show what it showed."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conformance.fuzz.causes import Difference, slug
from conformance.programs import Program, check
from conformance.records import record
from conformance.store.files import read_record, write_record

#: Where they are by default, in the folder that a command is run in.
CORPUS = Path("fuzz/corpus")


@record()
class Entry:
    """A program on a model, and how it fails, by backend; one that is not named passes there.
    `why` is what is known of the cause: the words of known.yaml, or of whoever looked into it.
    """

    model: str
    program: Program
    fails: Mapping[str, str]
    cause: str
    why: str = ""
    diagnosis: str = ""


def read(folder: Path) -> dict[str, Entry]:
    """By file name, in its order. Raises ConformanceError for a file that holds none."""
    entries = {}
    for path in sorted(folder.glob("*.json")):
        entry = read_record(Entry, path)
        if entry is not None:
            check(entry.program)
            entries[path.stem] = entry
    return entries


def keep(folder: Path, difference: Difference) -> Path:
    path = folder / f"{slug(difference.cause)}.json"
    write_record(
        path,
        Entry(
            model=difference.model,
            program=difference.program,
            fails={failure.backend: failure.kind for failure in difference.failures},
            cause=difference.cause,
            why=difference.explained,
            diagnosis=next(
                (failure.diagnosis for failure in difference.failures if failure.diagnosis), ""
            ),
        ),
    )
    return path
