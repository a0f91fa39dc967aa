"""Classify how programs differ, and recognise programs with the same cause."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import field, replace
from typing import Annotated

from pydantic import Field

from conformance.judge.cell.reference import BASELINE_RUNS_DIFFER
from conformance.judge.expectations import KnownGaps
from conformance.judge.expectations.assess import explains, find_applying
from conformance.judge.expectations.conditions import Where, holds
from conformance.judge.expectations.sizes import says_nothing
from conformance.spec.programs import Do, ModelPart, Operation, Program, Tokens
from conformance.spec.records import LARGEST, Cell, CellResult, Precision, Verdict, digest, record
from conformance.spec.records.base import Id

#: Verdicts on values: which one a program gets depends on what it happens to read.
_VALUES = frozenset(
    {
        Verdict.WRONG,
        Verdict.DROPPED,
        Verdict.PARTIAL,
        Verdict.MISSCALED,
        Verdict.CONTAMINATED,
        Verdict.ALIASED,
        Verdict.NONFINITE,
    }
)
#: Programs scale their errors by what they do (a scale, a product, a norm). An error larger by more
#: than this factor has another cause.
FURTHER = 30.0


@record()
class Failure:
    """How a program fails on one column. `kind` groups failures that look the same: the verdict, or
    "value" for verdicts on values; for an error its message without numbers. `precision` is the one
    that shows it. `size` is the largest relative error, None if no failing value has one.
    """

    backend: Id
    kind: str
    verdict: Verdict
    reason: str
    diagnosis: str = ""
    known: str = ""
    precision: Precision = Precision.FLOAT32
    size: Annotated[float, Field(ge=0, allow_inf_nan=False)] | None = None


@record()
class ProgramDifference:
    """A program that differs, minimised; `drawn` is the original program.

    `failures` are the columns on which it fails. `cause` identifies the finding: a later program
    with the same cause is the same finding. `explained` is the reason of the entry of known.yaml,
    or of the corpus, that expects it.
    """

    model: Id
    program: Program
    failures: tuple[Failure, ...]
    drawn: Program
    cause: str
    explained: str = ""
    again: int = 0
    after: int = 0
    seconds: float = 0.0
    files: tuple[str, ...] = field(default=())


def describe_failure(cell: CellResult, known: str = "") -> Failure:
    verdict = cell.verdict
    kind = "value" if verdict in _VALUES or verdict is Verdict.VACUOUS else str(verdict)
    if verdict is Verdict.ERROR:
        kind = f"error: {alike(cell.reason)}"
    sizes = [one.extra[LARGEST] for one in cell.observations if LARGEST in one.extra]
    return Failure(
        cell.backend,
        kind,
        verdict,
        cell.reason,
        cell.diagnosis,
        known,
        cell.precision,
        size=max(sizes, default=None),
    )


def alike(words: str) -> str:
    """Return the first line without numbers, addresses and quoted names."""
    line = words.strip().partition("\n")[0][:160]
    return re.sub(r"0x[0-9a-f]+|\d+(?:\.\d+)?|'[^']*'", "#", line)


def is_undetermined(cell: CellResult) -> bool:
    """Return whether the cell fails only on values that the baseline runs do not agree on. For
    example, a direction removed from itself leaves rounding error, which a norm then amplifies.
    """
    unclear = [each for each in cell.observations if each.message == BASELINE_RUNS_DIFFER]
    off = [each for each in cell.observations if not each.verdict.passes]
    return bool(unclear) and len(off) == len(unclear)


def differs(cell: CellResult) -> bool:
    """Return whether the cell is a finding: it fails, and is neither refused nor vacuous. A vacuous
    write does not hide other failures, except values that the baseline runs do not agree on.
    """
    if cell.verdict is Verdict.VACUOUS:
        observed = any(
            each.verdict.fails and each.message != BASELINE_RUNS_DIFFER
            for each in cell.observations
        )
        return observed or any(relation.gates and not relation.holds for relation in cell.relations)
    return cell.verdict.fails and not cell.harness


def pattern(operation: Operation, program: Program) -> str:
    """Describe an operation without its layer, amount and seed."""
    rows = "" if operation.tokens is Tokens.ALL else ".row"
    value = ".taken" if operation.value is not None else ""
    step = ".later" if program.steps > 1 and (operation.step or 0) > 0 else ""
    prompt = ".one" if operation.prompt is not None and len(program.prompts) > 1 else ""
    return f"{operation.do}-{operation.part}{rows}{value}{step}{prompt}"


def cause_of(model: str, program: Program, failures: Mapping[str, Failure]) -> str:
    """Return a name for what a minimised program shows: who fails, how, and at which operations."""
    columns = "+".join(sorted(failures))
    how = "+".join(sorted({failure.kind for failure in failures.values()}))
    ops = " ".join(sorted(pattern(op, program) for op in program.operations)) or "nothing"
    many = f"{min(len(program.prompts), 2)}p{min(program.steps, 2)}s{len(program.groups)}t"
    return f"{model}|{columns}|{how}|{ops}|{many}"


def slug(cause: str) -> str:
    """Return a file name for a cause. The cause may come from a file and hold any characters."""
    model, _, details = cause.partition("|")
    words = details.split("|")
    whose = re.sub(r"[^A-Za-z0-9_.]", "_", model).lstrip(".")[:60]
    plain = re.sub(r"[^a-z0-9]+", "_", words[2].lower()).strip("_")[:60] if len(words) > 2 else ""
    return f"{whose}_{plain or 'nothing'}_{digest(cause)[:6]}"


def find_operations(difference: ProgramDifference, program: Program) -> set[int] | None:
    """Return the operations of a program that show a difference; None if it lacks one."""
    known = {(op.do, op.part) for op in difference.program.operations}
    shown = {index: _shown(op) & known for index, op in enumerate(program.operations)}
    if set().union(*shown.values()) != known:
        return None
    return {index for index, keys in shown.items() if keys}


def _shown(operation: Operation) -> set[tuple[Do, ModelPart]]:
    """Return what an operation does, and the read of its place that is implied."""
    keys = {(operation.do, operation.part)}
    return keys | {(Do.READ, operation.part)} if operation.do.observes else keys


def same_failures(before: Mapping[str, Failure], after: Mapping[str, Failure]) -> bool:
    """Return whether the second program fails like the first: on the same shared columns, in the
    same way, and with errors that are not much smaller.
    """
    return _fail_alike(before, after) and not any(
        failed.size is not None and has_much_larger_error(failed, after[column])
        for column, failed in before.items()
    )


def is_known_difference(failures: Mapping[str, Failure], difference: ProgramDifference) -> bool:
    """Return whether a known difference explains these failures: the same columns fail in the
    same way, and no error is much larger than the recorded one.
    """
    known = {failed.backend: failed for failed in difference.failures}
    return _fail_alike(known, failures) and not any(
        has_much_larger_error(failed, known[column]) for column, failed in failures.items()
    )


def has_much_larger_error(failed: Failure, than: Failure) -> bool:
    """Return whether the error is too large for the same cause. An error of unknown size is."""
    if than.size is None:
        return False
    return failed.size is None or failed.size > FURTHER * than.size


def _fail_alike(left: Mapping[str, Failure], right: Mapping[str, Failure]) -> bool:
    return bool(left) and kinds_of(left) == kinds_of(right)


def kinds_of(failures: Mapping[str, Failure]) -> dict[str, str]:
    """Return how each column fails."""
    return {column: failed.kind for column, failed in failures.items()}


def find_reason(known: KnownGaps, cell: CellResult, plain: Cell, where: Where) -> str:
    """Return the reason of the entry of known.yaml that expects this result of the cell, or "".

    An entry for other scenarios also applies if it matches the cell's message and names a cause or
    a part: programs do what scenarios do, and a gap has the same message in both.
    """
    direct = {known.entries[index].reason for index in find_applying(known, plain, where)}
    for entry in known.entries:
        elsewhere = (
            not says_nothing(entry.says)
            and holds(entry.when, where)
            and any(plain in replace(match, scenario="*", case="*") for match in entry.matches)
        )
        if (entry.reason in direct or elsewhere) and explains(entry, cell):
            return " ".join(entry.reason.split())
    return ""
