"""The findings of a bisect as one record, read by the terminal, Markdown, the page and scripts: the
answer in one sentence, the notes that belong to it, and every trial.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from conformance.commands.bisect import candidates
from conformance.commands.bisect.candidates import Candidate
from conformance.commands.bisect.halving import (
    BisectionConclusion,
    BisectionEnding,
    Class,
    SignaturePart,
)
from conformance.commands.bisect.next_step import HELD, class_of, flaky, moved, neither
from conformance.commands.bisect.state import BisectFolder, BisectionState, CandidateTrial
from conformance.errors import ExitCode
from conformance.report.grouping import group_by
from conformance.runner.environments import ENGINES, parse
from conformance.runner.store.files import write_text
from conformance.runner.store.keys import PACKAGES
from conformance.spec.records import record
from conformance.spec.residual_stream import LAYOUTS
from conformance.spec.shortening import clip, few

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
    return _Reporter(state, conclusion).report(folder, cache)


def footprint(folders: Iterable[Path]) -> float:
    """Return the size on the disk in MiB. A file with several hard links counts once."""
    files = (path.lstat() for folder in folders for path in folder.rglob("*") if not path.is_dir())
    sizes = {(status.st_dev, status.st_ino): status.st_blocks * 512 for status in files}
    return sum(sizes.values()) / 2**20


@dataclass(frozen=True)
class _Reporter:
    state: BisectionState
    conclusion: BisectionConclusion

    @cached_property
    def steps(self) -> tuple[candidates.RequirementChange, ...]:
        """The changes between the lock files, if there are any."""
        return candidates.changes(*self.state.locks) if self.state.locks else ()

    @cached_property
    def labels(self) -> dict[str, str]:
        """The label of every tried candidate, by key."""
        labels = {candidate.key: candidate.label for candidate in self.state.candidates}
        labels[HELD] = f"{labels.get(self.conclusion.bad, '')}, the others held"
        for trial in self.state.attempts if self.state.locks else ():
            words = trial.candidate.partition(" ")[2].split(",")
            subset = tuple(int(word) for word in words if word)
            label = candidates.subset_of(self.state.locks[0], self.steps, subset).label
            labels.setdefault(trial.candidate, label)
        return labels

    @cached_property
    def sides(self) -> tuple[Candidate, Candidate]:
        """The two candidates to compare."""
        rows = {candidate.key: candidate for candidate in self.state.candidates}
        first, *_, last = rows.values()
        if cause := self.conclusion.cause:
            return first, candidates.subset_of(self.state.locks[0], self.steps, cause)
        return rows.get(self.conclusion.good, first), rows.get(self.conclusion.bad, last)

    @cached_property
    def moved(self) -> dict[str, tuple[str, str]]:
        """The versions of the packages that moved along: before and after."""
        before, after = (self.state.tested(side.key) for side in self.sides)
        return moved(before, after, self.state.asked.subject) if before and after else {}

    def label(self, key: str) -> str:
        return self.labels.get(key, key)

    def report(self, folder: BisectFolder, cache: Path) -> Report:
        state, conclusion = self.state, self.conclusion
        before, after = (state.tested(side.key) for side in self.sides)
        places = {attempt.environment for attempt in state.attempts if attempt.environment}
        return Report(
            schema=SCHEMA,
            id=folder.id,
            subject=state.asked.subject,
            ending=conclusion.ending,
            headline=self._headline() + self._beside(),
            exit_code=self._code(),
            good=self.sides[0].label,
            bad=self.sides[1].label,
            between={
                self.label(key): "flaky" if flaky(state, key) else state.of(key)[0].untestable
                for key in conclusion.between
            },
            cause=tuple(str(self.steps[index]) for index in conclusion.cause),
            changed=_changed(before, after) if before and after else (),
            moved=self.moved,
            held=self._describe_held(),
            notes=tuple(self._notes()),
            trials=tuple(
                ReportedTrial(
                    self.label(attempt.candidate),
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
            reproduce=self._reproduce(folder) if before and after else "",
            command=state.asked.command,
            candidates=len(state.candidates),
            seconds=sum(attempt.seconds for attempt in state.attempts),
            environments=len(places),
            built=sum(attempt.built for attempt in state.attempts),
            build_seconds=sum(attempt.build_seconds for attempt in state.attempts if attempt.built),
            disk_mib=footprint(cache / "environments" / place for place in places),
        )

    def _code(self) -> ExitCode:
        key = self.conclusion.bad or self.conclusion.good
        harness = any(attempt.harness for attempt in self.state.of(key))
        if self.conclusion.ending is BisectionEnding.UNTESTABLE and harness:
            return ExitCode.HARNESS
        return _CODES[self.conclusion.ending]

    def _reproduce(self, folder: BisectFolder) -> str:
        """Return a command that runs both sides as columns of one run."""
        words = ["conformance run", self.state.asked.with_cells]
        for name, candidate in zip(("good", "bad"), self.sides, strict=True):
            spec = str(parse("\n".join(candidate.requirements)))
            if len(spec) > _LONG:
                path = folder.path / f"{name}.txt"
                write_text(path, spec + "\n")
                spec = f"$(cat {path})"
            words.append(f'--env "{name}: {spec}"')
        return " ".join(filter(None, words))

    def _headline(self) -> str:
        """Return one sentence: the cause, or why there is none to name."""
        good, bad = map(self.label, (self.conclusion.good, self.conclusion.bad))
        match self.conclusion.ending:
            case BisectionEnding.SAME:
                return f"There is no difference between {good} and {bad}: nothing to search for."
            case BisectionEnding.SWAPPED:
                return (
                    f"The good end ({good}) fails where the bad one ({bad}) passes: swap --good "
                    "and --bad. The candidates may run from new to old."
                )
            case BisectionEnding.UNTESTABLE:
                tried = self.state.of(self.conclusion.bad or self.conclusion.good)
                return f"The end {bad or good} cannot be tested: {clip(tried[0].untestable)}"
            case BisectionEnding.UNSTEADY:
                for key in (self.conclusion.good, self.conclusion.bad):
                    if flaky(self.state, key):
                        return f"{self.label(key)} is flaky: no answer can rest on it."
                return (
                    f"Not monotone: {bad} is bad and {good}, after it, is good, however often it "
                    "is tried."
                )
            case BisectionEnding.CULPRIT | BisectionEnding.RANGE:
                return self._cause() if self.state.locks else self._culprit(good, bad)

    def _beside(self) -> str:
        """Describe changed engine packages: ` Not requested but changed: vllm 0.32 → 0.30.`"""
        changes = [
            f"{name} {before} → {after}"
            for name, (before, after) in self.moved.items()
            if name in ENGINES and before and after
        ]
        return f" Not requested but changed: {'; '.join(changes)}." if changes else ""

    def _culprit(self, good: str, bad: str) -> str:
        subject, between = self.state.asked.subject, self.conclusion.between
        if between:
            return (
                f"{subject} changed after {good} and not later than {bad}; untestable in between: "
                f"{few(map(self.label, between), 3)}."
            )
        if self.state.asked.backwards:
            return f"{subject} {good} is the first without it; {bad} is the last that has it."
        return f"{subject} {bad} is the first bad one; {good} is the last good one."

    def _cause(self) -> str:
        names = ", ".join(str(self.steps[index]) for index in self.conclusion.cause)
        count, of = len(self.conclusion.cause), f"of {len(self.steps)} changes"
        if count == 1:
            return f"{names} does it alone ({of})."
        if self.conclusion.ending is BisectionEnding.CULPRIT:
            return f"These {count} {of} do it together, and none can be left out: {names}."
        return f"The cause is among these {count} {of}; parts of them cannot be tested: {names}."

    def _describe_held(self) -> str:
        """Say whether a package that moved along could be the cause instead."""
        culprit = self.conclusion.ending is BisectionEnding.CULPRIT
        if self.state.locks or not culprit or not self.moved:
            return ""
        subject, attempts = self.state.asked.subject, self.state.of(HELD)
        pinned = ", ".join(f"{n} {was}" for n, (was, _) in self.moved.items() if n in PACKAGES)
        if not pinned or not attempts:
            return f"None of them computes what is observed: {', '.join(PACKAGES)} stayed."
        match class_of(attempts[0], self.state):
            case Class.BAD:
                return f"With {pinned} it is bad all the same: it is {subject} itself."
            case Class.GOOD:
                return f"With {pinned} it is good: not {subject} is the cause, but one of them."
            case Class.UNTESTABLE:
                return f"{pinned} cannot be kept: {clip(attempts[0].untestable)}"

    def _notes(self) -> Iterator[str]:
        """Yield what a reader must know to trust the answer."""
        counts = self.state.asked.neither.value
        if odd := [self.label(key) for key in neither(self.state)]:
            yield f"Not as at either end, counted as {counts}: {', '.join(odd)}."
        if shaky := [one.label for one in self.state.candidates if flaky(self.state, one.key)]:
            yield f"Flaky, and not relied upon: {', '.join(shaky)}."


def _changed(a: CandidateTrial, b: CandidateTrial) -> tuple[Changed, ...]:
    changes = [
        (at_good.cell, part.value, _layout_words(before), _layout_words(after))
        for at_good, at_bad in zip(a.signatures, b.signatures, strict=True)
        for part in SignaturePart
        if (before := at_good.part(part)) != (after := at_bad.part(part))
        and not (part is SignaturePart.BITWISE and at_good.verdict.fails)
    ]
    alike = group_by(changes, lambda change: change[1:])
    return tuple(Changed(tuple(cell for cell, *_ in own), *key) for key, own in alike.items())


def _layout_words(text: str) -> str:
    """Return a layout's text with its meaning appended; any other text unchanged."""
    layout = LAYOUTS.get(text.partition(" ")[0])
    return f"{text}: {layout.meaning}" if layout else text
