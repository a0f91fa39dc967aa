"""Find which rows an observation of the wrong shape holds."""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from conformance.judge.diagnosis import extent
from conformance.judge.diagnosis.predictions import NoisyRows
from conformance.judge.measures import metrics
from conformance.judge.reference import ReferenceRuns
from conformance.records import Limits, Site


def align(
    candidate: Tensor, site: Site, reference: ReferenceRuns, limits: Limits
) -> tuple[str, str]:
    """Return a kind and words for rows found elsewhere in the reference's batch; else ("", "")."""
    reference_values = reference.reference_values.get(site)
    if reference_values is None or reference_values.ndim < 2 or not candidate.is_floating_point():
        return "", ""
    if (
        not candidate.ndim
        or not candidate.numel()
        or candidate.shape[-1] != reference_values.shape[-1]
    ):
        return "", ""
    prompts = [
        other for other in reference.reference_values if replace(other, prompt=site.prompt) == site
    ]
    batch = {other.prompt: reference.known()[other] for other in prompts}
    rows = metrics.rows(candidate)
    places = [_place(row, batch, limits) for row in rows]
    located = [place for place in places if place is not None]
    if len(located) != len(places):
        return "", ""
    return _words(located, site, len(reference_values), candidate)


def _place(row: Tensor, batch: dict[int, NoisyRows], limits: Limits) -> tuple[int, int] | None:
    """Return the prompt and token whose row this is, within noise."""
    best = None
    for prompt, value in batch.items():
        mask = metrics.bulk(value.rows)
        ratios = metrics.ratio(metrics.norm(value.rows - row, mask), value.noise)
        token = int(ratios.argmin())
        if best is None or float(ratios[token]) < best[0]:
            best = (float(ratios[token]), prompt, token)
    if best is None or best[0] > 2 * limits.k_max:
        return None
    return best[1], best[2]


def _words(
    places: list[tuple[int, int]], site: Site, length: int, candidate: Tensor
) -> tuple[str, str]:
    own = [token for prompt, token in places if prompt == site.prompt]
    if len(own) < len(places):
        prompts = extent.ranges(prompt for prompt, _ in places)
        return "rows-of-batch", f"holds rows of prompts {prompts}"
    if own == list(range(length)):
        shape = list(candidate.shape)
        return "extra-dimension", f"holds the right rows, in shape {shape}"
    if len(own) == 1:
        return "single-row", f"holds token {own[0]}'s row alone"
    missing = sorted(set(range(length)) - set(own))
    if missing:
        kind = "first-rows-missing" if missing[0] == 0 else "rows-missing"
        return (
            kind,
            f"lacks the row{'s' if len(missing) > 1 else ''} of tokens {extent.ranges(missing)}",
        )
    twice = sorted({token for token in own if own.count(token) > 1})
    return "rows-repeated", f"holds tokens {extent.ranges(twice)} more than once"
