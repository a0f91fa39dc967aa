"""Token ids: whether noise explains a choice that differs from the reference's.

The reference is run along the candidate's tokens, so its logits at a step are conditional on the
candidate's prefix. Two free-running sequences are never compared after they diverge.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.judge.cell.measures import metrics
from conformance.spec.records import CHOSEN, GREEDY, Limits, Precision, Relation, Site

#: Flips that are excusable one by one fail together if they are less probable than this.
FLIPS_IMPROBABLE = 1e-9
_RIVALS = 8


@dataclass(frozen=True, slots=True)
class TokenChoice:
    """One chosen token against the reference's logits of that step.

    `margin` is how far the chosen logit lies below the best, `noise` the baseline runs' scatter on
    that pair of logits (at least one bf16 ulp). `chance` is the probability that a baseline run
    chooses another token than the reference.
    """

    chosen: int
    best: int
    margin: float
    noise: float
    chance: float
    benign: bool

    @property
    def flipped(self) -> bool:
        return self.margin > 0


def choice(
    chosen: int,
    reference: Tensor,
    baseline: Tensor,
    limits: Limits,
    precision: Precision = Precision.BF16,
) -> TokenChoice:
    """Judge a chosen id by the reference's logits [V] and the baseline runs' [M, V]."""
    top = reference.topk(min(_RIVALS + 1, reference.numel())).indices
    best = top[0]
    margin = float(reference[best] - reference[chosen])
    noise = float(_pair_noise(reference, baseline, best, torch.tensor([chosen]), precision)[0])
    gaps = reference[best] - reference[top[1:]]
    rival_noise = _pair_noise(reference, baseline, best, top[1:], precision)
    chance = float(torch.special.ndtr(-gaps / rival_noise).sum().clamp_max(1.0))
    benign = margin <= limits.margin * noise
    return TokenChoice(chosen, int(best), margin, noise, chance, benign)


def _pair_noise(
    reference: Tensor, baseline: Tensor, best: Tensor, rivals: Tensor, precision: Precision
) -> Tensor:
    gaps = reference[best] - reference[rivals]
    baseline_gaps = baseline[:, best].unsqueeze(-1) - baseline[:, rivals]
    noise = (baseline_gaps - gaps).square().mean(dim=0).sqrt()
    largest = torch.maximum(reference[best].abs(), reference[rivals].abs())
    return torch.maximum(noise, metrics.ulp(largest, precision))


def agreed_steps(
    candidate: Mapping[Site, Tensor], reference: Mapping[Site, Tensor]
) -> dict[tuple[str, int], int]:
    """Return for each run and prompt how many leading steps have the same ids on both sides.

    Steps are comparable up to and including the first that differs. If a scenario keeps no ids, all
    its steps are compared.
    """
    agreed: dict[tuple[str, int], int] = {}
    told = {(site.run, site.prompt) for site in reference if site.name in CHOSEN}
    for run, prompt in {(site.run, site.prompt) for site in reference}:
        step = 0 if (run, prompt) in told else max(site.step for site in reference)
        while any(
            site in candidate and site in reference and same_ids(candidate[site], reference[site])
            for site in (Site(name, prompt, step, run=run) for name in CHOSEN)
        ):
            step += 1
        agreed[run, prompt] = step
    return agreed


def same_ids(own: Tensor, reference: Tensor) -> bool:
    return own.shape == reference.shape and bool((own == reference).all())


def follow_logits(candidate: Mapping[Site, Tensor], greedy: Collection[Site]) -> Relation | None:
    """Check that each `greedy` id is exactly its step's largest logit; None if no step has both."""
    steps, broken = 0, []
    for site in sorted(greedy, key=str):
        token, logits = candidate.get(site), candidate.get(replace(site, name="logits"))
        if token is None or logits is None or token.numel() != 1 or token.is_floating_point():
            continue
        steps += 1
        if not is_largest(token, logits):
            broken.append(str(site))
    if not steps:
        return None
    detail = f"not at {', '.join(broken)}" if broken else f"{steps} steps"
    return Relation("greedy tokens are the largest of their own logits", not broken, detail)


def largest_sites(reference: Mapping[Site, Tensor], name: str = GREEDY) -> frozenset[Site]:
    """Return where a free run takes its step's largest logit; elsewhere ids are prescribed."""
    return frozenset(
        site
        for site, token in reference.items()
        if site.name == name
        and token.numel() == 1
        and (logits := replace(site, name="logits")) in reference
        and is_largest(token, reference[logits])
    )


def is_largest(token: Tensor, logits: Tensor) -> bool:
    """Return whether a single id has the largest logit of its step."""
    flat, at = logits.flatten(), int(token)
    return 0 <= at < flat.numel() and bool(flat[at] == flat.max())


def flips(choices: Sequence[tuple[str, TokenChoice]]) -> Relation | None:
    """Check that there are no more flips than the margins predict; None without tokens."""
    if not choices:
        return None
    flipped = [site for site, choice in choices if choice.flipped]
    chances = [choice.chance for _, choice in choices]
    probability = at_least(len(flipped), chances)
    detail = f"{len(flipped)} of {len(choices)} tokens differ from the reference's choice"
    detail += f", {sum(chances):.2g} expected from the margins"
    if flipped:
        detail += f"; first at {flipped[0]}"
    holds = len(flipped) < 2 or probability >= FLIPS_IMPROBABLE
    return Relation("no more flipped tokens than the margins predict", holds, detail)


def at_least(count: int, chances: Sequence[float]) -> float:
    """Return the probability of `count` or more successes among independent events."""
    exactly = [1.0] + [0.0] * len(chances)
    for events, chance in enumerate(chances):
        for successes in range(events + 1, 0, -1):
            exactly[successes] = exactly[successes] * (1 - chance) + exactly[successes - 1] * chance
        exactly[0] *= 1 - chance
    return math.fsum(exactly[count:])
