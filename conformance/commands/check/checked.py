"""The result of a check of one file on one engine: answer, findings, and the verdict as a cell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

from conformance.errors import ExitCode
from conformance.judge.cell.both_precisions import VerdictDecision, decide
from conformance.spec.records import Answer, Precision, Verdict, record


class CheckAnswer(StrEnum):
    """The possible answers for one file on one engine."""

    SAME = "same"
    NUMERICS = "same but for numerics"
    DIFFERS = "differs"
    FAILS = "fails there"
    UNSUPPORTED = "unsupported there"
    INVALID = "cannot be checked"
    HARNESS = "harness failure"

    @property
    def code(self) -> ExitCode:
        return {
            CheckAnswer.SAME: ExitCode.OK,
            CheckAnswer.NUMERICS: ExitCode.OK,
            CheckAnswer.INVALID: ExitCode.BAD_INPUT,
            CheckAnswer.HARNESS: ExitCode.HARNESS,
        }.get(self, ExitCode.UNEXPECTED)


#: The answers that mean agreement.
AGREES = frozenset({CheckAnswer.SAME, CheckAnswer.NUMERICS})

#: Kinds of findings that give a more specific verdict than the numbers.
_VERDICTS: Mapping[str, Verdict] = {
    "alias": Verdict.ALIASED,
    "dropped": Verdict.DROPPED,
    "partial": Verdict.PARTIAL,
    "scaled": Verdict.MISSCALED,
    "structure": Verdict.STRUCTURE,
    "twice": Verdict.MISSCALED,
}


@record()
class CheckFinding:
    """One difference. `kind` is for programs, `name` is the user's name for the value. For an
    error, `line` is the line of the file that raised it and `code` its text.
    """

    kind: str
    words: str
    name: str = ""
    layer: int | None = None
    step: int = 0
    prompt: int = 0
    line: int = 0
    code: str = ""


@record()
class Checked:
    """The result for one file on one engine. `findings` add details to the `sentence`.

    `meaning` and `numerics` are the judge's verdicts and reasons in float32 and in bf16. `error` is
    the largest relative distance of a value from transformers in float32 (median over tokens).
    `page` is the report. `diff` is the suggested edit; if the edited file was run and agrees,
    `verified` is True and `fixed` is its text.
    """

    file: str
    model: str
    backend: str
    answer: CheckAnswer
    sentence: str
    findings: tuple[CheckFinding, ...] = ()
    notes: tuple[str, ...] = ()
    meaning: str = ""
    numerics: str = ""
    error: float | None = None
    detail: str = ""
    page: str = ""
    diff: str = ""
    verified: bool = False
    fixed: str = ""


@dataclass(frozen=True)
class Answered:
    """An answer with the judge's results by precision. `key` is the file's name in the check."""

    checked: Checked
    key: str
    evidence: tuple[Answer, ...] = ()
    prompt_ids: tuple[tuple[int, ...], ...] = ()


def decision_of(one: Answered) -> VerdictDecision:
    """Return the verdict of an answer and its evidence. Without bf16 results, float32 decides."""
    answer, findings = one.checked.answer, one.checked.findings
    coarse = Precision.BF16
    judged = [each for each in one.evidence if each.precision is not coarse or not each.harness]
    ran = Verdict.MATCH if answer is CheckAnswer.SAME else Verdict.ERROR
    decision = decide(judged or [Answer(Precision.FLOAT32, ran, one.checked.sentence)])
    verdict = decision.verdict
    if answer is CheckAnswer.DIFFERS and findings:
        verdict = _VERDICTS.get(findings[0].kind, verdict)
    elif answer is CheckAnswer.NUMERICS and not verdict.passes:
        verdict = Verdict.DRIFT
    if verdict.passes and answer not in AGREES:
        verdict = Verdict.WRONG if answer is CheckAnswer.DIFFERS else Verdict.ERROR
    return replace(decision, verdict=verdict)


def exit_code(checked: list[Checked]) -> ExitCode:
    """Return the gravest exit code: a harness failure, then bad input, then a difference."""
    return max(one.answer.code for one in checked)  # the exit codes are in this order
