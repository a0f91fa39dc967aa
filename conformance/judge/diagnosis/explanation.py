"""Which hypothesis explains a wrong value, and which others do as well.

Each predicts the value that a fault would have produced. One is accepted when the
candidate agrees with its prediction within noise and with no other prediction, the
truth included, less than three times worse; else the tie is said.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.judge.diagnosis import hypotheses
from conformance.judge.diagnosis.predictions import Explanation, Hypothesis, Scene
from conformance.judge.measures import metrics
from conformance.judge.measures.floor import median_limit
from conformance.records import Limits

#: A prediction's noise is itself estimated; it may be this much larger than said.
_SLACK = 2.0
#: The runner-up must be this much worse.
_CLEARLY = 3.0
#: A prediction that leaves out more of the rows yields to one that does not: a shift by one
#: says nothing of the row at the edge, but of two rows it must not leave out one.
_COVERED = 0.75

#: So many numbers of a value are compared with each prediction, in whole rows, and so many rows
#: at least. Predictions are many (a shift by every row is one), and a few rows tell them apart:
#: without this the logits of ninety tokens of a trained model take minutes.
_NUMBERS, _FEWEST_ROWS = 2**18, 4


@dataclass(frozen=True, slots=True)
class _Trial:
    """A hypothesis with its place in the proposals, its fit, and the rows it speaks of."""

    order: int
    hypothesis: Hypothesis
    ratio: float
    fits: bool
    covered: float


def explain(scene: Scene, limits: Limits) -> tuple[Explanation, ...]:
    """The hypotheses that explain the rows which are off; () when none does.

    More than one means that they cannot be told apart.
    """
    ratios = _ratios(scene, _truth(scene), torch.ones(len(scene.rows), dtype=torch.bool))
    off = _some(_off(ratios, limits), scene.rows.shape[1])
    before = ratios * scene.own.noise
    trials = [
        trial
        for order, hypothesis in enumerate(hypotheses.propose(scene))
        if (trial := _try(scene, order, hypothesis, (off, before), limits)) is not None
    ]
    closest = min(
        (trial for trial in trials if trial.fits), key=lambda trial: trial.ratio, default=None
    )
    if closest is None:
        return ()
    near = [trial for trial in trials if trial.ratio <= _CLEARLY * closest.ratio]
    tied = [
        min(group, key=lambda trial: (trial.covered < _COVERED, trial.order))
        for group in _group_by_fault(
            scene, [closest, *(trial for trial in near if trial is not closest)], off
        )
    ]
    return tuple(
        Explanation(
            trial.hypothesis.kind, trial.hypothesis.words, trial.ratio, trial.hypothesis.source
        )
        for trial in tied
    )


def _try(
    scene: Scene,
    order: int,
    hypothesis: Hypothesis,
    rows_off: tuple[Tensor, Tensor],
    limits: Limits,
) -> _Trial | None:
    """None for what says too little of the rows that are off, or is too uncertain to explain.
    `rows_off`: which those are, and the distance of each from the truth.
    """
    off, before = rows_off
    rows = off & hypothesis.valid
    covered = int(rows.sum()) / int(off.sum())
    if covered < 1 - covered or not bool(rows.any()):
        return None
    ratios = _ratios(scene, hypothesis, rows)
    after = ratios * hypothesis.noise[rows]
    if _rms(after) * _CLEARLY > _rms(before[rows]):  # hardly nearer than the truth itself
        return None
    fits = (
        metrics.median(ratios.tolist()) <= _SLACK * median_limit(len(ratios), limits)
        and float(ratios.max()) <= _SLACK * limits.k_max
    )
    return _Trial(order, hypothesis, _rms(ratios), fits, covered)


def _truth(scene: Scene) -> Hypothesis:
    own = scene.own
    return Hypothesis("", "", own.rows, own.noise, torch.ones(len(own.rows), dtype=torch.bool))


def _off(ratios: Tensor, limits: Limits) -> Tensor:
    """The rows that differ from the truth; all of them where none does by itself."""
    off = ratios > limits.k_max
    return off if bool(off.any()) else torch.ones_like(off)


def _some(rows: Tensor, width: int) -> Tensor:
    """As many of these rows as are compared, evenly among them."""
    most = max(_FEWEST_ROWS, _NUMBERS // width)
    chosen = rows.nonzero().flatten()
    if len(chosen) <= most:
        return rows
    some = torch.zeros_like(rows)
    some[chosen[torch.linspace(0, len(chosen) - 1, most).round().long()]] = True
    return some


def _ratios(scene: Scene, hypothesis: Hypothesis, selected: Tensor) -> Tensor:
    """The distance of some rows from a prediction, over its noise.

    On the dimensions which are massive neither in the prediction nor in the truth: what
    is left of a massive value when another is taken from it is mostly rounding.
    """
    predicted = hypothesis.rows[selected]
    mask = metrics.bulk(predicted) & metrics.bulk(scene.own.rows[selected])
    return metrics.ratio(
        metrics.norm(scene.rows[selected] - predicted, mask), hypothesis.noise[selected]
    )


def _group_by_fault(scene: Scene, trials: Sequence[_Trial], off: Tensor) -> list[list[_Trial]]:
    """Groups of hypotheses that are one fault: of one kind, or the same within noise."""
    groups: list[list[_Trial]] = []
    for trial in trials:
        for group in groups:
            if _same_fault(scene, trial.hypothesis, group[0].hypothesis, off):
                group.append(trial)
                break
        else:
            groups.append([trial])
    return groups


def _same_fault(scene: Scene, left: Hypothesis, right: Hypothesis, off: Tensor) -> bool:
    rows = off & left.valid & right.valid
    if left.kind == right.kind or not bool(rows.any()):
        return left.kind == right.kind
    predicted = replace(scene, rows=left.rows)
    return bool((_ratios(predicted, right, rows) <= 1.0).all())


def _rms(values: Tensor) -> float:
    return float(values.square().mean().sqrt())
