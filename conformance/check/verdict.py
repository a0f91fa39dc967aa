"""An answer as the verdict of a cell."""

from __future__ import annotations

from collections.abc import Mapping

from conformance.check.answer import Answered
from conformance.check.checked import Answer
from conformance.records import Answer as Evidence
from conformance.records import Precision, Verdict

#: What a finding says more exactly than the numbers do.
_VERDICTS: Mapping[str, Verdict] = {
    "alias": Verdict.ALIASED,
    "dropped": Verdict.DROPPED,
    "partial": Verdict.PARTIAL,
    "scaled": Verdict.MISSCALED,
    "structure": Verdict.STRUCTURE,
    "twice": Verdict.MISSCALED,
    "unsaved": Verdict.MISSING,
}


def leading(one: Answered) -> tuple[Evidence, Evidence | None]:
    """The precision that decided, and the other: bf16 decides where float32 agrees and bf16
    could be judged.
    """
    by = {each.precision: each for each in one.evidence}
    meaning, numerics = by.get(Precision.FLOAT32), by.get(Precision.BF16)
    if meaning is None:
        ran = one.checked.answer is Answer.SAME
        verdict = Verdict.MATCH if ran else Verdict.ERROR
        return Evidence(Precision.FLOAT32, verdict, one.checked.sentence), None
    told = numerics is not None and not numerics.harness
    if numerics is not None and told and meaning.verdict.passes and not numerics.verdict.passes:
        return numerics, meaning
    return meaning, numerics


def verdict_of(one: Answered) -> Verdict:
    """The verdict that an answer comes to."""
    answer, findings = one.checked.answer, one.checked.findings
    decided, _ = leading(one)
    if answer is Answer.NUMERICS:
        return decided.verdict if decided.verdict.passes else Verdict.DRIFT
    if answer is Answer.INVALID and decided.verdict.passes:
        return Verdict.ERROR
    if answer is Answer.DIFFERS and findings:
        return _VERDICTS.get(findings[0].kind, decided.verdict)
    return decided.verdict
