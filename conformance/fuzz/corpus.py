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
    found = {}
    for path in sorted(folder.glob("*.json")):
        kept = read_record(Entry, path)
        if kept is not None:
            check(kept.program)
            found[path.stem] = kept
    return found


def keep(folder: Path, difference: Difference) -> Path:
    path = folder / f"{slug(difference.cause)}.json"
    write_record(
        path,
        Entry(
            model=difference.model,
            program=difference.program,
            fails={one.backend: one.kind for one in difference.failures},
            cause=difference.cause,
            why=difference.explained,
            diagnosis=next((one.diagnosis for one in difference.failures if one.diagnosis), ""),
        ),
    )
    return path
