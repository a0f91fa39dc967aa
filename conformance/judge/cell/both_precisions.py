"""The verdict of a cell, decided from its results in two precisions (pure).

Float32 decides correctness: two right computations agree to a part in a million. Bf16, which people
run, decides numerics: a value coarser than baseline runs is `drift`. Only what lies far beyond
them, or what only bf16 can show, fails.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.judge.cell import judgement
from conformance.spec.records import Answer, Precision, Verdict, record


@record()
class VerdictDecision:
    """The verdict, its reason, the deciding answer, and the other answer if there is one."""

    verdict: Verdict
    reason: str
    leading: Answer
    beside: Answer | None = None


def decide(answers: list[Answer]) -> VerdictDecision:
    """Return the verdict of a cell that was run in one precision or in both.

    1. Float32 decides if it does not pass: a failure, or a harness that cannot tell.
    2. If the engine refuses float32, or float32 was not run, bf16 decides alone.
    3. If float32 passes, or drifts because a router's choice depends on rounding, bf16 decides. A
       check without the power to decide in bf16 (a dose below its noise) passes on float32 alone,
       unless another observation is off in bf16.
    4. A refusal in bf16 is a refusal: the cell was never tested in the precision that people run.
    """
    by_precision = {answer.precision: answer for answer in answers}
    meaning, numerics = by_precision.get(Precision.FLOAT32), by_precision.get(Precision.BF16)
    if meaning is None or numerics is None:
        [only] = answers
        return VerdictDecision(only.verdict, only.reason, only)
    shown, reason = numerics.verdict, numerics.reason
    if meaning.verdict.neutral:
        if not shown.neutral:
            reason = f"{reason}; judged in bf16 alone, float32 is {meaning.verdict}"
        return VerdictDecision(shown, reason, numerics, meaning)
    tied = meaning.verdict is Verdict.DRIFT and (shown.fails or shown.neutral)
    if not (meaning.verdict.passes or tied):
        return VerdictDecision(meaning.verdict, meaning.reason, meaning, numerics)
    if shown is Verdict.VACUOUS:
        claims = judgement.claims(numerics.observations, numerics.relations)
        off = [claim for claim in claims if not claim[0].passes]
        if not off:
            words = f"{meaning.reason}; in bf16 {shown}: {reason}"
            return VerdictDecision(meaning.verdict, words, meaning, numerics)
        shown, reason = judgement.deciding(off)
        numerics = replace(numerics, harness=shown is Verdict.UNKNOWN)
    if shown.passes:
        return VerdictDecision(shown, meaning.reason, meaning, numerics)
    words = f"in bf16 only, in float32 {meaning.verdict}: {reason}"
    return VerdictDecision(shown, words, numerics, meaning)
