"""A cell's verdict from what its two precisions say (pure).

Meaning is decided in float32, where two right computations agree to a part in a million.
Numerics are decided in bf16, which people run: there a value that is coarser than honest
runs is `drift`, and only what lies far beyond them, or what bf16 alone can show, fails.
"""

from __future__ import annotations

from dataclasses import replace

from conformance.judge import judgement
from conformance.records import Answer, Precision, Verdict, record


@record()
class Decision:
    """The verdict, why, the answer that decided, and the other where there is one."""

    verdict: Verdict
    reason: str
    leading: Answer
    beside: Answer | None = None


def decide(answers: list[Answer]) -> Decision:
    """The verdict of a cell that was gathered in one precision or in both.

    1. Float32 decides what it does not pass: a failure, or a harness that cannot tell.
    2. Where the engine refuses float32, or it was not gathered, bf16 decides alone.
    3. Where float32 passes, or drifts, as it does where a router's choice is a matter of rounding,
       bf16 decides; a check that has too little power there (a dose
       below bf16's noise) was made in float32 and passes. What bf16 shows to be off beside
       such a check is off all the same.
    4. A refusal in bf16 is a refusal: nobody has seen the cell in the precision that people run.
    """
    by_precision = {answer.precision: answer for answer in answers}
    meaning, numerics = by_precision.get(Precision.FLOAT32), by_precision.get(Precision.BF16)
    if meaning is None or numerics is None:
        [only] = answers
        return Decision(only.verdict, only.reason, only)
    if meaning.verdict.neutral:
        return Decision(numerics.verdict, _alone(numerics, meaning), numerics, meaning)
    tied = meaning.verdict is Verdict.DRIFT
    worse = numerics.verdict.fails or numerics.verdict.neutral
    if not (meaning.verdict.passes or tied) or (tied and not worse):
        return Decision(meaning.verdict, meaning.reason, meaning, numerics)
    shown, reason = numerics.verdict, numerics.reason
    if shown is Verdict.VACUOUS:
        claims = judgement.claims(numerics.observations, numerics.relations)
        off = [claim for claim in claims if not claim[0].passes]
        if off:
            shown, reason = judgement.deciding(off)
            numerics = replace(numerics, harness=shown is Verdict.UNKNOWN)
    if shown is Verdict.VACUOUS:
        words = f"{meaning.reason}; in bf16 {shown}: {reason}"
        return Decision(meaning.verdict, words, meaning, numerics)
    if shown.passes:
        return Decision(shown, meaning.reason, meaning, numerics)
    return Decision(shown, _only_bf16(replace(numerics, reason=reason), meaning), numerics, meaning)


def _only_bf16(numerics: Answer, meaning: Answer) -> str:
    return f"in bf16 only, in float32 {meaning.verdict}: {numerics.reason}"


def _alone(numerics: Answer, meaning: Answer) -> str:
    if numerics.verdict.neutral:
        return numerics.reason
    return f"{numerics.reason}; judged in bf16 alone, float32 is {meaning.verdict}"
