"""Drawn token ids: are they as likely as draws of their logits are?

They are held against the logits that the same step showed, which are held against the truth
themselves: which ids a top-p keeps hangs on the last bit of the likeliest. Where a step showed
none, against the truth's, which is run along the drawn ids. With p the distribution at a step, the
surprisal −log p(id) of an honest draw has the mean H = −Σ p log p and the variance
Σ p (log p)² − H². Summed over a cell's draws the excess (Σ surprisal − Σ H) / √(Σ variance) is near
a standard normal deviate; an engine that takes the largest, draws evenly, or draws at another
temperature is far from it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from conformance.records import Relation

TITLE = "drawn tokens are as likely as draws of their logits"
#: How many standard deviations the pooled surprisal may lie from its mean.
_DEVIATIONS = 6.0


@dataclass(frozen=True, slots=True)
class Draws:
    """How ids were drawn: from softmax(logits / `temperature`), of which the likeliest ids
    that together hold `top_p` were kept.
    """

    temperature: float = 1.0
    top_p: float = 1.0


def likelihood(drawn: Sequence[tuple[Tensor, int]], draws: Draws) -> Relation | None:
    """Whether drawn ids, each with the logits [vocabulary] of its step, are as likely as draws;
    None without any.
    """
    if not drawn:
        return None
    excess = variance = 0.0
    for logits, token in drawn:
        probabilities = distribution(logits, draws)
        surprisal = probabilities.log().neg().clamp_max(1e3)
        mean = float((probabilities * surprisal).sum())
        variance += float((probabilities * surprisal.square()).sum()) - mean**2
        excess += float(surprisal[token]) - mean
    deviations = excess / math.sqrt(variance) if variance > 0 else math.copysign(math.inf, excess)
    if excess == 0:
        deviations = 0.0
    direction = "less" if excess > 0 else "more"
    detail = f"{len(drawn)} draws are {abs(deviations):.1f} standard deviations {direction} likely"
    return Relation(TITLE, abs(deviations) <= _DEVIATIONS, detail)


def distribution(logits: Tensor, draws: Draws) -> Tensor:
    """float64 [vocabulary]: the probabilities that ids are drawn with. Of ids that are equally
    likely all are kept where one is: which of them comes first is the engine's own.
    """
    probabilities = torch.softmax(logits.double().flatten() / draws.temperature, dim=-1)
    if draws.top_p < 1:
        ordered = probabilities.sort(descending=True).values
        before = ordered.cumsum(0) - ordered
        least = ordered[before <= draws.top_p].min()
        probabilities = probabilities.masked_fill(probabilities < least, 0.0)
    return probabilities / probabilities.sum()
