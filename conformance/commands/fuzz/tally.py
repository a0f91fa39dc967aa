"""Count what a campaign has done, and describe it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import field
from typing import Annotated

from pydantic import Field

from conformance.commands.fuzz.causes import ProgramDifference
from conformance.errors import ExitCode
from conformance.spec.programs import Program, complaints
from conformance.spec.records import record
from conformance.spec.records.base import Count, Tally

#: The largest share of programs on which baseline runs may differ by more than rounding, and the
#: least number of programs that it is a share of. Of 5,100 drawn programs, 11 did.
MOST_UNDETERMINED, _FEW = 0.02, 200


@record()
class CampaignRequest:
    """The request of a campaign; a resumed one continues with the same."""

    models: tuple[str, ...]
    backends: tuple[str, ...]
    seed: Tally
    minutes: Annotated[float, Field(ge=0, allow_inf_nan=False)]
    programs: Tally | None
    batch: Count
    corpus: str
    frozen: bool


@record()
class CampaignState:
    """A campaign's file. By model, `drawn` counts the judged programs, `draws` the drawn batches,
    and `undetermined` the programs on which baseline runs disagree. `waiting` are drawn programs
    whose differences are still to be minimised.
    """

    asked: CampaignRequest
    draws: Mapping[str, Tally] = field(default_factory=dict)
    drawn: Mapping[str, Tally] = field(default_factory=dict)
    verdicts: Mapping[str, Tally] = field(default_factory=dict)
    covered: Mapping[str, Tally] = field(default_factory=dict)
    refusals: Mapping[str, Tally] = field(default_factory=dict)
    differences: tuple[ProgramDifference, ...] = ()
    waiting: tuple[ProgramDifference, ...] = ()
    replayed: Tally = 0
    fixed: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    harness: tuple[str, ...] = ()
    undetermined: Mapping[str, Tally] = field(default_factory=dict)
    seconds: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    finished: bool = False


def mistake(state: CampaignState) -> str:
    """Return why a campaign cannot continue from this state, or ""."""
    for difference in (*state.differences, *state.waiting):
        if not difference.failures:
            return f"a program differs on no column: {difference.cause or difference.model}"
        for program in (difference.program, difference.drawn):
            for words in complaints(program):
                return f"a program means nothing: {words}"
    return ""


def places(program: Program) -> Iterable[str]:
    """Return the pairs (operation, place) of a program."""
    return (f"{op.do} at {op.part}" for op in program.operations)


def add_counts(counts: Mapping[str, int], more: Iterable[str]) -> dict[str, int]:
    return dict(Counter(counts) + Counter(more))


def summary(state: CampaignState) -> Iterator[str]:
    """Yield the figures, line by line."""
    total = sum(state.drawn.values())
    rate = total / state.seconds if state.seconds else 0.0
    yield (
        f"{total} programs in {state.seconds:.0f} s ({rate:.2f} a second), "
        f"{state.replayed} replayed from the corpus"
    )
    yield "verdicts: " + ", ".join(f"{n} {v}" for v, n in sorted(state.verdicts.items()))
    yield f"{len(state.covered)} pairs of operation and place, drawn so often: " + ", ".join(
        f"{name} {count}" for name, count in sorted(state.covered.items())
    )
    for words, count in sorted(state.refusals.items(), key=lambda item: -item[1]):
        yield f"refused {count} times: {words}"
    for name in state.fixed:
        yield f"the corpus' {name} passes now: remove its file"
    for name in state.changed:
        yield f"the corpus' {name}"
    for difference in state.differences:
        yield from describe_difference(difference)
    if unclear := sum(state.undetermined.values()):
        yield (
            f"{unclear} programs have a value that baseline runs do not agree on, as where a norm "
            f"follows a direction that is taken out of itself: nothing is said of it"
        )
    if _too_many_undetermined(state):
        yield f"the harness failed: more than {MOST_UNDETERMINED:.0%} of all programs have one"
    for words in state.harness:
        yield f"the harness failed: {words}"


def exit_code(state: CampaignState) -> ExitCode:
    """Return 3 if the harness failed, 1 for an unknown difference or changed corpus, else 0."""
    if state.harness or _too_many_undetermined(state):
        return ExitCode.HARNESS
    unknown = any(not difference.explained for difference in state.differences)
    return ExitCode.UNEXPECTED if unknown or state.fixed or state.changed else ExitCode.OK


def _too_many_undetermined(state: CampaignState) -> bool:
    """Return whether so many are undetermined that the reference must be wrong."""
    few = MOST_UNDETERMINED * max(sum(state.drawn.values()), _FEW)
    return sum(state.undetermined.values()) > few


def describe_difference(difference: ProgramDifference) -> Iterator[str]:
    """Describe a difference in a few lines."""
    standing = f"known ({difference.explained})" if difference.explained else "NEW"
    where = ", ".join(f"{f.backend} {f.verdict}" for f in difference.failures)
    size = len(difference.program.operations)
    yield f"{standing}: {difference.model}: {where}: {size} operations, {difference.cause}"
    first = difference.failures[0] if difference.failures else None
    if first is not None:
        yield f"  {first.reason.splitlines()[0][:200] if first.reason else ''}"
        if first.diagnosis:
            yield f"  {first.diagnosis[:200]}"
    first_shown = f"first after {difference.after} and {difference.seconds:.0f} s"
    yield f"  shown by {difference.again + 1} programs, {first_shown}"
    for path in difference.files:
        yield f"  {path}"
