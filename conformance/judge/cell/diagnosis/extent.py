"""Descriptions of the observations that are off: names, layers, prompts, steps, tokens."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence, Sized

from conformance.spec.records import Judged, Limits, Site, Verdict


def ranges(numbers: Iterable[int]) -> str:
    """Format numbers as ranges: 1, 2, 3, 7 → "1-3, 7"."""
    spans: list[list[int]] = []
    for number in sorted(set(numbers)):
        if spans and spans[-1][-1] == number - 1:
            spans[-1][1:] = [number]
        else:
            spans.append([number])
    return ", ".join("-".join(map(str, span)) for span in spans)


def plural(counted: Sized) -> str:
    return "s" if len(counted) > 1 else ""


def describe(sites: Collection[Site], among: Iterable[Site]) -> str:
    """Describe the sites by what they share, leaving out what all of `among` share.

    "stream after layers 7-29 of prompt 1": the layers of each name, then prompts, steps and runs if
    only some of them are concerned.
    """
    parts = []
    for name in dict.fromkeys(site.name for site in sites):
        layers = {site.layer for site in sites if site.name == name and site.layer is not None}
        parts.append(f"{name} after layer{plural(layers)} {ranges(layers)}" if layers else name)
    words = ", ".join(parts)
    for what in ("prompt", "step"):
        concerned = {getattr(site, what) for site in sites}
        if concerned != {getattr(site, what) for site in among}:
            words += f" of {what}{plural(concerned)} {ranges(concerned)}"
    runs = {site.run for site in sites}
    if len(runs) == 1 and "" not in runs:
        words += f" in the {runs.pop()} run"
    return words


def tokens_off(observations: Sequence[Judged], limits: Limits) -> str:
    """Describe which tokens of each prompt are off, "" if all or none are."""
    off: dict[int, set[int]] = {}
    lengths: dict[int, int] = {}
    for observation in observations:
        prompt = Site.parse(observation.site).prompt
        far = {token for token, ratio in enumerate(observation.ratios) if ratio > limits.k_max}
        off.setdefault(prompt, set()).update(far)
        lengths[prompt] = max(lengths.get(prompt, 0), len(observation.ratios))
    if all(len(tokens) in {0, lengths[prompt]} for prompt, tokens in off.items()):
        return ""
    clauses = []
    for prompt, tokens in sorted(off.items()):
        which = f"token{plural(tokens)} {ranges(tokens)}"
        if tokens:
            all_tokens = len(tokens) == lengths[prompt]
            clauses.append(f"{'all tokens' if all_tokens else which} of prompt {prompt}")
    return f"only {', '.join(clauses)}"


def goes_on(off: Sequence[Site], judged: Mapping[Site, Judged]) -> str:
    """Say whether the layers after the first that is off are right again.

    If a value is wrong and a later layer is within noise, the computation was right and only the
    read was wrong. An error just above the noise does not prove this: it can decay.
    """
    layered = [site for site in off if site.layer is not None]
    if not layered:
        return ""
    first = min(layered, key=lambda site: (site.step, site.layer or 0))
    later = [
        site
        for site, observation in judged.items()
        if (site.run, site.prompt, site.step) == (first.run, first.prompt, first.step)
        and observation.q_max is not None
        and _depth(site) > _depth(first)
    ]
    if not later:
        return ""
    right = [site for site in later if judged[site].verdict.passes]
    begins = f"the first difference is after layer {first.layer}"
    if not right:
        return f"{begins}, and everything after it differs too"
    end = any(_depth(site) == math.inf for site in right)
    scope = " of that prompt and step" if any(site.name == "logits" for site in off) else ""
    again = f"the logits{scope} agree" if end else "later layers agree again"
    if judged[first].verdict is Verdict.DRIFT:
        return (
            f"{begins}; {again}, so the value read is less precise than the one that the engine "
            "used, or the error decays"
        )
    return f"{begins}; {again}, so the engine computed the value correctly and it was read wrongly"


def _depth(site: Site) -> float:
    if site.layer is not None:
        return site.layer
    return math.inf if site.name == "logits" else -1.0


def no_effect(observations: Iterable[Judged], layers: Mapping[str, int], backend: str) -> str:
    """Describe a dropped write in one sentence: where, on which backend, how surely."""
    gains = [observation.gain for observation in observations if observation.gain is not None]
    where = f" at layer {next(iter(layers.values()))}" if len(layers) == 1 else ""
    surest = min(gains, key=lambda gain: gain.sigma, default=None)
    size = "" if surest is None else f" (gain {surest.g:.2f} ± {surest.sigma:.2f})"
    return f"the write{where} had no effect on {backend}{size}"
