"""The findings of a bisect as one record, read by the terminal, Markdown, the page and scripts."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field
from pathlib import Path

from conformance.bisect.history import locks
from conformance.bisect.history.candidates import Candidate
from conformance.bisect.next_step import (
    BisectionConclusion,
    BisectionEnding,
    class_of,
    flaky,
    moved,
    neither,
)
from conformance.bisect.presentation.headline import beside, headline, held_words, labels, notes
from conformance.bisect.presentation.signature_parts import SignaturePart
from conformance.bisect.search import Class
from conformance.bisect.state import BisectFolder, BisectionState, CandidateTrial
from conformance.environments import parse
from conformance.errors import ExitCode
from conformance.records import record
from conformance.residual_stream import LAYOUTS
from conformance.store.files import write_text

SCHEMA = "conformance-bisect/1"

#: Longer specifications are stored in a file next to the report.
_LONG = 200

_CODES = {
    BisectionEnding.CULPRIT: ExitCode.OK,
    BisectionEnding.RANGE: ExitCode.UNEXPECTED,
    BisectionEnding.SAME: ExitCode.UNEXPECTED,
    BisectionEnding.UNSTEADY: ExitCode.UNEXPECTED,
    BisectionEnding.SWAPPED: ExitCode.BAD_INPUT,
    BisectionEnding.UNTESTABLE: ExitCode.BAD_INPUT,
}


@record()
class Changed:
    """One part of the signature that differs between good and bad, with the cells it differs in."""

    cells: tuple[str, ...]
    part: str
    before: str
    after: str


@record()
class ReportedTrial:
    """One trial as the report shows it. `run` is the folder below `runs/`."""

    candidate: str
    found: Class
    words: str
    environment: str = ""
    built: bool = False
    build_seconds: float = 0.0
    seconds: float = 0.0
    run: str = ""


@record()
class Report:
    """The content of `report.json`. `moved` maps packages to their versions at the last good and
    the first bad candidate. `disk_mib` is the size of the environments; shared files count once.
    """

    schema: str
    id: str
    subject: str
    ending: BisectionEnding
    headline: str
    exit_code: ExitCode
    good: str = ""
    bad: str = ""
    between: Mapping[str, str] = field(default_factory=dict)
    cause: tuple[str, ...] = ()
    changed: tuple[Changed, ...] = ()
    moved: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    held: str = ""
    notes: tuple[str, ...] = ()
    trials: tuple[ReportedTrial, ...] = ()
    reproduce: str = ""
    command: str = ""
    candidates: int = 0
    seconds: float = 0.0
    environments: int = 0
    built: int = 0
    build_seconds: float = 0.0
    disk_mib: float = 0.0


def make(
    state: BisectionState, conclusion: BisectionConclusion, folder: BisectFolder, cache: Path
) -> Report:
    """Return the report; `cache` is the folder that holds the environments."""
    names = labels(state, conclusion)
    good, bad = _sides(state, conclusion)
    before, after = state.tested(good.key), state.tested(bad.key)
    places = {attempt.environment for attempt in state.attempts if attempt.environment}
    along = moved(before, after, state.asked.subject) if before and after else {}
    return Report(
        schema=SCHEMA,
        id=folder.id,
        subject=state.asked.subject,
        ending=conclusion.ending,
        headline=headline(state, conclusion) + beside(along),
        exit_code=_code(state, conclusion),
        good=good.label,
        bad=bad.label,
        between={
            names.get(key, key): "flaky" if flaky(state, key) else state.of(key)[0].untestable
            for key in conclusion.between
        },
        cause=tuple(str(locks.changes(*state.locks)[index]) for index in conclusion.cause),
        changed=_changed(before, after) if before and after else (),
        moved=along,
        held=held_words(state, conclusion, along),
        notes=notes(state, [names.get(key, key) for key in neither(state)]),
        trials=tuple(_trial(attempt, state, names) for attempt in state.attempts),
        reproduce=_reproduce(state, folder, good, bad) if before and after else "",
        command=state.asked.command,
        candidates=len(state.candidates),
        seconds=sum(attempt.seconds for attempt in state.attempts),
        environments=len(places),
        built=sum(attempt.built for attempt in state.attempts),
        build_seconds=sum(attempt.build_seconds for attempt in state.attempts if attempt.built),
        disk_mib=footprint(cache / "environments" / place for place in places),
    )


def footprint(folders: Iterable[Path]) -> float:
    """Return the size on the disk in MiB. A file with several hard links counts once."""
    sizes: dict[tuple[int, int], int] = {}
    for folder in folders:
        for place, _, files in os.walk(folder):
            for name in files:
                status = Path(place, name).lstat()
                sizes[status.st_dev, status.st_ino] = status.st_blocks * 512
    return sum(sizes.values()) / 2**20


def _code(state: BisectionState, conclusion: BisectionConclusion) -> ExitCode:
    harness = any(attempt.harness for attempt in state.of(conclusion.bad or conclusion.good))
    if conclusion.ending is BisectionEnding.UNTESTABLE and harness:
        return ExitCode.HARNESS
    return _CODES[conclusion.ending]


def _sides(state: BisectionState, conclusion: BisectionConclusion) -> tuple[Candidate, Candidate]:
    """Return the two candidates to compare."""
    rows = {candidate.key: candidate for candidate in state.candidates}
    first, last = state.candidates[0], state.candidates[-1]
    if state.locks and conclusion.cause:
        steps = locks.changes(*state.locks)
        return first, locks.subset_of(state.locks[0], steps, conclusion.cause)
    return rows.get(conclusion.good, first), rows.get(conclusion.bad, last)


def _changed(a: CandidateTrial, b: CandidateTrial) -> tuple[Changed, ...]:
    cells_by_change: dict[tuple[str, str, str], list[str]] = {}
    for at_good, at_bad in zip(a.signatures, b.signatures, strict=True):
        for part in SignaturePart:
            before, after = at_good.part(part), at_bad.part(part)
            if before != after and not (part is SignaturePart.BITWISE and at_good.verdict.fails):
                key = (part.value, _layout_words(before), _layout_words(after))
                cells_by_change.setdefault(key, []).append(at_good.cell)
    return tuple(Changed(tuple(cells), *key) for key, cells in cells_by_change.items())


def _layout_words(text: str) -> str:
    """Return a layout's text with its meaning appended; any other text unchanged."""
    layout = LAYOUTS.get(text.partition(" ")[0])
    return f"{text}: {layout.meaning}" if layout else text


def _trial(
    attempt: CandidateTrial, state: BisectionState, names: Mapping[str, str]
) -> ReportedTrial:
    return ReportedTrial(
        names.get(attempt.candidate, attempt.candidate),
        class_of(attempt, state),
        attempt.untestable or "; ".join(dict.fromkeys(map(str, attempt.signatures))),
        attempt.environment,
        attempt.built,
        attempt.build_seconds,
        attempt.seconds,
        attempt.run,
    )


def _reproduce(state: BisectionState, folder: BisectFolder, good: Candidate, bad: Candidate) -> str:
    """Return a command that runs both sides as columns of one run."""
    words = ["conformance run", state.asked.with_cells]
    for name, candidate in (("good", good), ("bad", bad)):
        spec = str(parse("\n".join(candidate.requirements)))
        if len(spec) > _LONG:
            path = folder.path / f"{name}.txt"
            write_text(path, spec + "\n")
            spec = f"$(cat {path})"
        words.append(f'--env "{name}: {spec}"')
    return " ".join(word for word in words if word)
