"""Test whether sampled token ids are draws from their logits with the requested parameters.

The logits are those the same step showed, which are judged separately: which ids a top-p keeps
depends on the last bit of the likeliest. If a step showed none, they are the reference's, which is
run along the drawn ids.

For every other way of sampling, the test computes how likely it makes the ids, relative to the
requested way. Under the requested way such a ratio has a mean of at most 1, whatever the earlier
ids were; so has the average over all ways, `evidence`. By Markov's inequality it exceeds 1 / RATE
with probability at most `RATE`: draws need not be independent, many, or near normal. A temperature
acts only through the sum of the ids' logits, so for two temperatures no test of the same rate
detects more.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.spec.records import Relation

TITLE = "drawn tokens are as likely as draws of their logits"
#: The largest rate at which correct draws are called wrong. One matrix of all backends has two
#: thousand cells of drawn ids in each precision, so one matrix in a thousand has a false alarm.
RATE = 4e-7
#: Other temperatures tried, as multiples of the requested one.
FACTORS = (0.125, 0.5, 0.7, 1.4, 2.0, 8.0)
#: The default top-k of transformers.
USUAL_TOP_K = 50
#: Probabilities closer than this may be equal, rounded differently.
_SAME = 1e-5


@dataclass(frozen=True, slots=True)
class Draws:
    """How ids are sampled: from softmax(logits / `temperature`).

    The `top_k` likeliest ids are kept (0: all), then the likeliest of these that together hold
    `top_p`.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0


def likelihood(drawn: Sequence[tuple[Tensor, int]], draws: Draws) -> Relation | None:
    """Check drawn ids, each with its step's logits [vocabulary]; None if there are none."""
    if not drawn:
        return None
    found, words = evidence(drawn, draws)
    return Relation(TITLE, found < -math.log(RATE), f"{len(drawn)} draws: {words}")


def evidence(drawn: Sequence[tuple[Tensor, int]], draws: Draws) -> tuple[float, str]:
    """Return the evidence for other ways of sampling, and a description.

    The evidence is the natural logarithm of the average likelihood ratio over the ways; infinite if
    an id could not be drawn.
    """
    totals = dict.fromkeys(others(draws), 0.0)
    before = None
    for step, (logits, token) in enumerate(drawn):
        if before is None or not torch.equal(before, logits):  # many draws share their logits
            asked, tried, before = at_most(logits, draws), ways(logits, draws), logits
        if asked[token] == 0:
            return math.inf, f"id {token} of draw {step} is outside of what was to be kept"
        for name, own in tried.items():
            likely = math.log(own[token]) if own[token] > 0 else -math.inf
            totals[name] += likely - math.log(float(asked[token]))
    best = max(totals, key=totals.__getitem__)
    most = totals[best]
    mean = most + math.log(sum(math.exp(total - most) for total in totals.values()) / len(totals))
    words = f"{best} makes them e^{most:.1f} times as likely"
    return mean, words if most > 0 else "no other way makes them likelier"


def others(draws: Draws) -> Mapping[str, Draws | None]:
    """Return the other ways that are tried, by name; None is uniform sampling."""
    few = draws.top_k // 2 if draws.top_k else USUAL_TOP_K
    others = [draws.temperature * factor for factor in FACTORS]
    return {
        "drawing evenly": None,
        **{f"temperature {other:g}": replace(draws, temperature=other) for other in others},
        f"top-p {draws.top_p * 0.75:g}": replace(draws, top_p=draws.top_p * 0.75),
        f"top-k {few}": replace(draws, top_k=few),
    }


def ways(logits: Tensor, draws: Draws) -> dict[str, Tensor]:
    """Return the probabilities of every other way."""
    even = torch.full((logits.numel(),), 1 / logits.numel(), dtype=torch.float64)
    return {
        name: even if other is None else distribution(logits, other)
        for name, other in others(draws).items()
    }


def distribution(logits: Tensor, draws: Draws) -> Tensor:
    """Return the sampling probabilities: float64 [vocabulary]; ties at a cutoff are all kept."""
    kept = _softmax(logits, draws)
    if 0 < draws.top_k < kept.numel():
        kept = _from(kept, float(kept.topk(draws.top_k).values[-1]))
    if draws.top_p < 1:
        kept = _from(kept, _least(kept, draws.top_p))
    return kept


def at_most(logits: Tensor, draws: Draws) -> Tensor:
    """Return the largest probability with which a correct engine draws each id: float64
    [vocabulary].

    An id at the edge of what is kept may be dropped, depending on rounding and order; all others
    are then likelier.
    """
    kept, times = _softmax(logits, draws), 1.0
    if 0 < draws.top_k < kept.numel():
        best = kept.topk(draws.top_k).values
        whole, kept = kept, _from(kept, float(best[-1]) * (1 - _SAME))
        times *= float(whole[kept > 0].sum() / best.sum())
    if draws.top_p < 1:
        # A float32 engine sums over the whole vocabulary, with rounding.
        margin = kept.numel() * 2.0**-24 + _SAME
        held = _surely_held(kept, draws.top_p - margin)
        whole, kept = kept, _from(kept, _least(kept, draws.top_p + margin) * (1 - _SAME))
        times *= float(whole[kept > 0].sum()) / held
    # Also allow for the rounding of the probability itself.
    return kept * times * (1 + _SAME)


def _softmax(logits: Tensor, draws: Draws) -> Tensor:
    return torch.softmax(logits.double().flatten() / draws.temperature, dim=-1)


def _from(probabilities: Tensor, least: float) -> Tensor:
    """Keep the probabilities of at least `least`, and renormalize."""
    kept = probabilities.masked_fill(probabilities < least, 0.0)
    return kept / kept.sum()


def _least(probabilities: Tensor, top_p: float) -> float:
    """Return the smallest probability kept: those before it hold at most `top_p`."""
    ordered = probabilities.sort(descending=True).values
    before = ordered.cumsum(0) - ordered
    return float(ordered[before <= top_p].min())


def _surely_held(probabilities: Tensor, top_p: float) -> float:
    """Return the total probability that is kept whatever the order of equal ids."""
    ordered = probabilities.sort(descending=True).values
    held = ordered.cumsum(0)
    ends = torch.searchsorted(-ordered, -ordered * (1 - _SAME), right=True) - 1
    sure = ordered[held[ends] - ordered <= top_p].sum()
    return max(float(sure), top_p, float(ordered[0]))
