"""The presentation of each verdict: its family, symbol and meaning.

The symbol and the family's shape identify the verdict without colour. `ORDER` runs from worst to
best: values that are silently wrong are worse than an engine that reports an error.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from conformance.spec.records import Verdict


class Family(StrEnum):
    """Groups of verdicts to distinguish at a glance. The values are class names of the page."""

    WRONG = "wrong"
    BROKEN = "broken"
    DOUBT = "doubt"
    NEUTRAL = "neutral"
    PASS = "pass"  # noqa: S105 - a class name, no secret


#: Legend text of each family.
FAMILIES: Mapping[Family, str] = {
    Family.WRONG: "the values are wrong",
    Family.BROKEN: "it did not finish",
    Family.DOUBT: "not settled",
    Family.NEUTRAL: "not run, with a reason",
    Family.PASS: "the values are right",
}

#: Rich styles for terminals.
STYLES: Mapping[Family, str] = {
    Family.WRONG: "bold red",
    Family.BROKEN: "bold magenta",
    Family.DOUBT: "yellow",
    Family.NEUTRAL: "dim",
    Family.PASS: "green",
}


@dataclass(frozen=True, slots=True)
class Look:
    """How the page shows one verdict."""

    family: Family
    symbol: str
    meaning: str


LOOKS: Mapping[Verdict, Look] = {
    Verdict.CONTAMINATED: Look(Family.WRONG, "+", "the write changed rows that it must not touch"),
    Verdict.WRONG: Look(
        Family.WRONG,
        "≠",
        "the values differ from the float32 reference by more than rounding explains",
    ),
    Verdict.DROPPED: Look(Family.WRONG, "∅", "the write had no effect"),
    Verdict.PARTIAL: Look(
        Family.WRONG, "½", "the write reached some tokens or prompts and not others"
    ),
    Verdict.MISSCALED: Look(Family.WRONG, "×", "the write landed with the wrong size or direction"),
    Verdict.ALIASED: Look(
        Family.WRONG, "&", "a saved value was overwritten later by the engine's own buffer"
    ),
    Verdict.NONFINITE: Look(Family.WRONG, "∞", "a value is NaN or infinite"),
    Verdict.DTYPE: Look(
        Family.WRONG, "T", "the values have another type or precision than they claim"
    ),
    Verdict.STRUCTURE: Look(
        Family.WRONG, "#", "shapes, token ids or the layout of the residual stream do not agree"
    ),
    Verdict.CRASH: Look(Family.BROKEN, "‼", "the engine's process died"),
    Verdict.TIMEOUT: Look(Family.BROKEN, "t", "the time limit passed without an answer"),
    Verdict.ERROR: Look(Family.BROKEN, "!", "the trace ended in an error"),
    Verdict.UNKNOWN: Look(
        Family.DOUBT, "?", "nothing was decided: an empty result, or another engine than claimed"
    ),
    Verdict.MISSING: Look(Family.DOUBT, "…", "an observation that was planned is not there"),
    Verdict.VACUOUS: Look(
        Family.DOUBT, "0", "the check has no power here: it would pass whatever the engine did"
    ),
    Verdict.DRIFT: Look(
        Family.DOUBT,
        "~",
        "further from float32 than the baseline runs in bf16, on all values alike",
    ),
    Verdict.UNSUPPORTED: Look(
        Family.NEUTRAL, "–", "the engine or nnsight says that it cannot do this"
    ),
    Verdict.UNTESTABLE: Look(
        Family.NEUTRAL, "⊘", "its environment cannot be resolved, installed or started"
    ),
    Verdict.SKIPPED: Look(Family.NEUTRAL, "»", "it was not run, for the reason given"),
    Verdict.MATCH: Look(Family.PASS, "≈", "as close to the float32 reference as baseline runs are"),
    Verdict.EXACT: Look(Family.PASS, "=", "bitwise equal"),
}

ORDER: Mapping[Verdict, int] = {verdict: rank for rank, verdict in enumerate(LOOKS)}


def worst(verdicts: Iterable[Verdict]) -> Verdict:
    """Return the worst verdict; `unknown` if there is none: an empty result is never a pass."""
    return min(verdicts, key=ORDER.__getitem__, default=Verdict.UNKNOWN)


def family(verdict: Verdict) -> Family:
    return LOOKS[verdict].family
