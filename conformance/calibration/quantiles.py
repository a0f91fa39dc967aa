"""From the scores of clean cases to thresholds, by split conformal prediction.

A threshold is the ⌈(n+1)(1−α)⌉-th smallest of n scores of clean cases that the ensemble has
not seen (Vovk, Gammerman and Shafer 2005, chapter 4): a further clean case exceeds it with a
probability of at most α. One quantile is taken for each model, and of them the largest: a
pooled one would let a single model have all the false alarms that are accepted. Caps keep
calibration from swallowing a fault: a model that needs more is named, and its cells are
reported as drift.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from conformance.calibration.files import sealed
from conformance.calibration.scores import Score
from conformance.errors import ConformanceError
from conformance.records import Calibration, ModelScores, Thresholds, digest

#: What the thresholds may reach at most (docs/numerics.md#the-limits).
CAP_MED = 1.5
CAP_MAX = 3.0
#: One false alarm in so many clean cases is accepted.
CASES_PER_ALARM = 300


def conformal(scores: Sequence[float], alarm: float) -> float:
    """The ⌈(n+1)(1−alarm)⌉-th smallest of n scores; the largest where n is too small."""
    ordered = sorted(scores)
    rank = math.ceil((len(ordered) + 1) * (1 - alarm))
    return ordered[min(rank, len(ordered)) - 1]


def calibrate(
    scores: Sequence[Score], *, date: str, device: str, versions: Mapping[str, str]
) -> Calibration:
    """Thresholds from clean cases. Raises ConformanceError when there are too few."""
    cases = {(score.model, score.case) for score in scores}
    if len(cases) < CASES_PER_ALARM:
        raise ConformanceError(
            f"{len(cases)} clean cases are too few to calibrate, {CASES_PER_ALARM} are needed",
            remedy="calibrate on more models: `conformance calibrate` without -m takes all",
        )
    by_model: dict[str, list[Score]] = {}
    for score in scores:
        by_model.setdefault(score.model, []).append(score)
    needs = {model: _needs(own) for model, own in by_model.items()}
    # Never below the starting values: a lucky set of models must not make it hysterical.
    start = Thresholds()
    k_med = max(start.k_med, min(CAP_MED, max(med for med, _ in needs.values())))
    k_max = max(start.k_max, min(CAP_MAX, max(most for _, most in needs.values())))
    models = tuple(_model(own, needs[model], k_med, k_max) for model, own in by_model.items())
    return sealed(
        Calibration(
            k_med=k_med,
            k_max=k_max,
            cap_med=CAP_MED,
            cap_max=CAP_MAX,
            cases_per_alarm=CASES_PER_ALARM,
            cases=len(cases),
            held_out=len(scores),
            alarms=sum(model.alarms for model in models),
            date=date,
            device=device,
            versions=versions,
            models=models,
            beyond=tuple(m.model for m in models if m.med > CAP_MED or m.max > CAP_MAX),
            scores=digest([[s.model, s.case, s.member, s.q_med, s.q_max] for s in scores]),
        )
    )


def _needs(scores: Sequence[Score]) -> tuple[float, float]:
    """What this model alone would set k_med and k_max to, rounded up."""
    alarm = 1 / CASES_PER_ALARM
    return (
        _up(conformal([score.q_med for score in scores], alarm)),
        _up(conformal([score.q_max for score in scores], alarm)),
    )


def _model(
    scores: Sequence[Score], needs: tuple[float, float], k_med: float, k_max: float
) -> ModelScores:
    worst = max(scores, key=lambda score: score.q_max)
    beyond = [s for s in scores if s.q_med > k_med or s.q_max > k_max or not s.bounded]
    return ModelScores(
        model=worst.model,
        cases=len({score.case for score in scores}),
        held_out=len(scores),
        med=needs[0],
        max=needs[1],
        largest_med=_up(max(score.q_med for score in scores)),
        largest_max=_up(worst.q_max),
        worst=f"{worst.case}, {worst.member}, {worst.site}",
        alarms=len(beyond),
    )


def _up(value: float) -> float:
    return math.ceil(value * 1000) / 1000
