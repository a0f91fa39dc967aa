"""Drawn token ids: are they draws of their logits, in the way that was asked for?

They are held against the logits that the same step showed, which are held against the truth
themselves: which ids a top-p keeps hangs on the last bit of the likeliest. Where a step showed
none, against the truth's, which is run along the drawn ids.

Every other way to draw is asked how likely it makes the ids, as a multiple of how likely the way
that was asked for makes them. Under that way the mean of such a multiple is 1 at most, whatever the
ids before led to, and so is the mean of their average, `evidence`. It is therefore beyond 1 / RATE
with a probability of `RATE` at most (Markov's inequality): draws need not be independent, or
many, or near normal. A temperature changes what is drawn by the sum of the ids' logits alone, so
that for two temperatures no test of the same rate sees more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.records import Relation

TITLE = "drawn tokens are as likely as draws of their logits"
#: How often draws as they were asked for are called wrong, at most. With all backends one matrix
#: holds two thousand cells of drawn ids in either precision: one of a thousand matrices is wrong.
RATE = 4e-7
#: Other temperatures, as multiples of the one that was asked for: too cold, too hot.
FACTORS = (0.125, 0.5, 0.7, 1.4, 2.0, 8.0)
#: What transformers keeps of all ids where nothing is asked.
USUAL_TOP_K = 50
#: Two probabilities that are no further apart than this may be one, rounded otherwise.
_SAME = 1e-5


@dataclass(frozen=True, slots=True)
class Draws:
    """How ids were drawn: from softmax(logits / `temperature`), of which the `top_k` likeliest ids
    were kept (0: all), and of these the likeliest that together hold `top_p`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


def likelihood(drawn: Sequence[tuple[Tensor, int]], draws: Draws) -> Relation | None:
    """Whether drawn ids, each with the logits [vocabulary] of its step, are as likely as draws;
    None without any.
    """
    if not drawn:
        return None
    found, words = evidence(drawn, draws)
    return Relation(TITLE, found < -math.log(RATE), f"{len(drawn)} draws: {words}")


def evidence(drawn: Sequence[tuple[Tensor, int]], draws: Draws) -> tuple[float, str]:
    """How many times as likely other ways to draw make these ids, on average over the ways: the
    natural logarithm, infinite where an id could not be drawn; and in words.
    """
    totals = dict.fromkeys(others(draws), 0.0)
    before = None
    for step, (logits, token) in enumerate(drawn):
        if before is None or not torch.equal(before, logits):  # many draw by the same
            asked, tried, before = at_most(logits, draws), ways(logits, draws), logits
        if asked[token] == 0:
            return math.inf, f"id {token} of draw {step} is outside of what was to be kept"
        for name, own in tried.items():
            totals[name] += _log(float(own[token])) - math.log(float(asked[token]))
    best = max(totals, key=totals.__getitem__)
    most = totals[best]
    mean = most + math.log(sum(math.exp(total - most) for total in totals.values()) / len(totals))
    words = f"{best} makes them e^{most:.1f} times as likely"
    return mean, words if most > 0 else "no other way makes them likelier"


def others(draws: Draws) -> Mapping[str, Draws | None]:
    """The other ways that are tried, by name: None draws evenly."""
    few = draws.top_k // 2 if draws.top_k else USUAL_TOP_K
    return {
        "drawing evenly": None,
        **{
            f"temperature {draws.temperature * factor:g}": replace(
                draws, temperature=draws.temperature * factor
            )
            for factor in FACTORS
        },
        f"top-p {draws.top_p * 0.75:g}": replace(draws, top_p=draws.top_p * 0.75),
        f"top-k {few}": replace(draws, top_k=few),
    }


def ways(logits: Tensor, draws: Draws) -> dict[str, Tensor]:
    """The probabilities that every other way draws with."""
    even = torch.full((logits.numel(),), 1 / logits.numel(), dtype=torch.float64)
    return {
        name: even if other is None else distribution(logits, other)
        for name, other in others(draws).items()
    }


def _log(probability: float) -> float:
    return math.log(probability) if probability > 0 else -math.inf


def distribution(logits: Tensor, draws: Draws) -> Tensor:
    """float64 [vocabulary]: the probabilities that ids are drawn with. Of ids that are equally
    likely all are kept where one is: which of them comes first is the engine's own.
    """
    kept = _softmax(logits, draws)
    if 0 < draws.top_k < kept.numel():
        kept = _from(kept, float(kept.topk(draws.top_k).values[-1]))
    if draws.top_p < 1:
        kept = _from(kept, _least(kept, draws.top_p))
    return kept


def at_most(logits: Tensor, draws: Draws) -> Tensor:
    """float64 [vocabulary]: the largest probability that any right engine draws each id with. An
    id at the end of what is kept may be kept or not, by how the engine rounds and orders; where
    it is not, all others are the likelier.
    """
    kept, times = _softmax(logits, draws), 1.0
    if 0 < draws.top_k < kept.numel():
        best = kept.topk(draws.top_k).values
        whole, kept = kept, _from(kept, float(best[-1]) * (1 - _SAME))
        times *= float(whole[kept > 0].sum() / best.sum())
    if draws.top_p < 1:
        # A float32 engine adds up the whole vocabulary.
        margin = kept.numel() * 2.0**-24 + _SAME
        held = _surely_held(kept, draws.top_p - margin)
        whole, kept = kept, _from(kept, _least(kept, draws.top_p + margin) * (1 - _SAME))
        times *= float(whole[kept > 0].sum()) / held
    # So that the rounding of a probability itself is no evidence either.
    return kept * times * (1 + _SAME)


def _softmax(logits: Tensor, draws: Draws) -> Tensor:
    return torch.softmax(logits.double().flatten() / draws.temperature, dim=-1)


def _from(probabilities: Tensor, least: float) -> Tensor:
    """Of those that are as large as this, the probabilities."""
    kept = probabilities.masked_fill(probabilities < least, 0.0)
    return kept / kept.sum()


def _least(probabilities: Tensor, top_p: float) -> float:
    """The smallest that is kept: so much is not held by those before it."""
    ordered = probabilities.sort(descending=True).values
    before = ordered.cumsum(0) - ordered
    return float(ordered[before <= top_p].min())


def _surely_held(probabilities: Tensor, top_p: float) -> float:
    """What those hold together that are kept in whatever order equal ones come; `top_p` is held in
    any order, and so is the likeliest.
    """
    ordered = probabilities.sort(descending=True).values
    held = ordered.cumsum(0)
    ends = torch.searchsorted(-ordered, -ordered * (1 - _SAME), right=True) - 1
    sure = ordered[held[ends] - ordered <= top_p].sum()
    return max(float(sure), top_p, float(ordered[0]))
