"""Find the hypotheses that explain a wrong value.

Each predicts the value that a fault produces. One is accepted if the candidate agrees with it
within noise and fits every other prediction, and the reference, three times worse. Otherwise the
tie is reported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.judge.cell.diagnosis.hypotheses import Hypothesis, Scene, propose
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.measures.floor import median_limit
from conformance.spec.records import Limits

#: A prediction's noise is itself an estimate; it may be this much larger.
_SLACK = 2.0
#: The runner-up must be this much worse.
_CLEARLY = 3.0
#: A prediction that covers less of the rows yields to one that covers them. A shift by one says
#: nothing about the row at the edge, but of two rows it must not leave out one.
_COVERED = 0.75
#: How many numbers of a value, in whole rows, and at least how many rows are compared with each
#: prediction. There are many predictions (a shift by each row), and a few rows distinguish them.
#: Without this limit, the logits of ninety tokens of a trained model take minutes.
_NUMBERS, _FEWEST_ROWS = 2**18, 4


@dataclass(frozen=True, slots=True)
class _Trial:
    """A hypothesis with its index among the proposals, its fit, and the share of rows it covers.

    `ratio` is the root mean square of its error over its noise.
    """

    order: int
    hypothesis: Hypothesis
    ratio: float
    fits: bool
    covered: float


def explain(scene: Scene, limits: Limits) -> tuple[Hypothesis, ...]:
    """Return the hypotheses that explain the rows that are off; several if they tie."""
    own = scene.own
    right = Hypothesis("", "", own.rows, own.noise, torch.ones(len(own.rows), dtype=torch.bool))
    ratios = _ratios(scene, right, right.valid)
    off = ratios > limits.k_max
    # If no row is off by itself, all are.
    off = _select_some(off if bool(off.any()) else right.valid, scene.rows.shape[1])
    trials = [
        trial
        for order, hypothesis in enumerate(propose(scene))
        if (trial := _try(scene, order, hypothesis, (off, ratios * own.noise), limits)) is not None
    ]
    closest = min(
        (trial for trial in trials if trial.fits), key=lambda trial: trial.ratio, default=None
    )
    if closest is None:
        return ()
    near = [trial for trial in trials if trial.ratio <= _CLEARLY * closest.ratio]
    near.sort(key=lambda trial: trial is not closest)
    return tuple(
        min(group, key=lambda trial: (trial.covered < _COVERED, trial.order)).hypothesis
        for group in _group_by_fault(scene, near, off)
    )


def _try(
    scene: Scene,
    order: int,
    hypothesis: Hypothesis,
    rows_off: tuple[Tensor, Tensor],
    limits: Limits,
) -> _Trial | None:
    """Test a hypothesis; None if it covers too few rows that are off, or is too uncertain.

    `rows_off` holds which rows are off, and the distance of each from the reference.
    """
    off, before = rows_off
    rows = off & hypothesis.valid
    covered = int(rows.sum()) / int(off.sum())
    if covered < 1 - covered or not bool(rows.any()):
        return None
    ratios = _ratios(scene, hypothesis, rows)
    after = ratios * hypothesis.noise[rows]
    if _rms(after) * _CLEARLY > _rms(before[rows]):  # hardly closer than the reference
        return None
    median = metrics.median(ratios.tolist())
    fits = median <= _SLACK * median_limit(len(ratios), limits)
    fits = fits and float(ratios.max()) <= _SLACK * limits.k_max
    return _Trial(order, hypothesis, _rms(ratios), fits, covered)


def _select_some(rows: Tensor, width: int) -> Tensor:
    """Return at most as many of these rows as are compared, evenly spaced."""
    most = max(_FEWEST_ROWS, _NUMBERS // width)
    chosen = rows.nonzero().flatten()
    if len(chosen) <= most:
        return rows
    some = torch.zeros_like(rows)
    some[chosen[torch.linspace(0, len(chosen) - 1, most).round().long()]] = True
    return some


def _ratios(scene: Scene, hypothesis: Hypothesis, selected: Tensor) -> Tensor:
    """Return the distance of the selected rows from a prediction, over its noise.

    Only dimensions that are massive in neither the prediction nor the reference count: the
    difference of two massive values is mostly rounding.
    """
    predicted = hypothesis.rows[selected]
    mask = metrics.bulk(predicted) & scene.own.bulk[selected]
    distance = metrics.norm(scene.rows[selected] - predicted, mask)
    return metrics.ratio(distance, hypothesis.noise[selected])


def _group_by_fault(scene: Scene, trials: Sequence[_Trial], off: Tensor) -> list[list[_Trial]]:
    """Group hypotheses that are one fault: of one kind, or equal within noise."""
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
