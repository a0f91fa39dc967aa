"""Find which known fault explains a failed cell, where it begins, and what it affects.

A diagnosis never improves a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from torch import Tensor

from conformance.judge.cell import judgement as verdict
from conformance.judge.cell.diagnosis import extent
from conformance.judge.cell.diagnosis.hypotheses import Hypothesis, NoisyRows
from conformance.judge.cell.diagnosis.testing_hypotheses import explain
from conformance.judge.cell.evidence import Evidence
from conformance.judge.cell.measures import metrics
from conformance.spec.records import Site, Verdict

#: How many observations are examined, spread over all that are off.
_LOOKED_AT = 24

_WRONG = frozenset({Verdict.WRONG, Verdict.DRIFT, Verdict.ALIASED})
_WRITE = frozenset({Verdict.DROPPED, Verdict.PARTIAL, Verdict.CONTAMINATED, Verdict.MISSCALED})
#: Words for several observations, each with its own prompt, factor or order.
_GENERAL = {
    "other-prompt": "another prompt's rows",
    "permuted": "rows in another order",
    "scaled": "a multiple of the right value",
}


class Diagnosis(NamedTuple):
    """What explains a failed cell: `kinds` for programs (several if they tie), and a sentence."""

    kinds: tuple[str, ...] = ()
    sentence: str = ""


class _Explained(NamedTuple):
    """What explains some observations, and which ones it explains."""

    kinds: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()
    sites: frozenset[Site] = frozenset()


def diagnose(evidence: Evidence, decided: Verdict) -> Diagnosis:
    """Return why the cell failed, as far as its own observations show it."""
    judged = evidence.judged
    kinds = _WRONG if decided in _WRONG else {decided}
    sites = sorted((site for site in judged if judged[site].verdict in kinds), key=verdict.order)
    if decided in _WRITE:
        return _diagnose_write(evidence)
    if decided in _WRONG:
        explained = _explain(evidence, explain_value, sites, "{where} holds {words}")
        clauses = list(explained.clauses)
        if not explained.kinds and sites:
            clauses.append(f"no fault of the catalogue explains {extent.describe(sites, judged)}")
        off = [judged[site] for site in sites]
        clauses += [extent.goes_on(sites, judged), extent.tokens_off(off, evidence.limits)]
        return Diagnosis(explained.kinds, "; ".join(filter(None, clauses)))
    if decided is Verdict.STRUCTURE:
        return _diagnose_shapes(evidence, sites)
    if decided.fails and 0 < len(sites) < len(judged):
        return Diagnosis(sentence=f"concerns {extent.describe(sites, judged)}")
    return Diagnosis()


def explain_value(evidence: Evidence, site: Site) -> tuple[Hypothesis, ...]:
    """Return what explains the value of one observation; () if it is no activation."""
    if site not in evidence.explained and site in evidence.rows:
        evidence.explained[site] = explain(evidence.scene_of_value(site), evidence.limits)
    return evidence.explained.get(site, ())


def _explain_change(evidence: Evidence, site: Site) -> tuple[Hypothesis, ...]:
    return explain(evidence.scene_of_change(site), evidence.limits)


def _diagnose_write(evidence: Evidence) -> Diagnosis:
    """Explain the change that the write made, or else the value that it left."""
    sites = [site for site, effect in evidence.effects.items() if effect.failed]
    form = "the effect of the write on {where} is {words}"
    change = _explain(evidence, _explain_change, sites, form)
    unexplained = [site for site in sites if site not in change.sites]
    value = _explain(evidence, explain_value, unexplained, "{where} holds {words}")
    clauses = [*change.clauses, *value.clauses]
    if not clauses and sites:
        clauses = [f"the write went wrong on {extent.describe(sites, evidence.judged)}"]
    return Diagnosis(change.kinds or value.kinds, "; ".join(clauses))


def _explain(
    evidence: Evidence,
    find: Callable[[Evidence, Site], tuple[Hypothesis, ...]],
    sites: Sequence[Site],
    form: str,
) -> _Explained:
    """Return the explanation of the first observation that has one, and which others share it.

    Of many observations every n-th is examined, and stands for those that follow it.
    """
    examined = _sample(sites)
    tried = dict.fromkeys(examined.values())
    by_site = {site: found for site in tried if (found := find(evidence, site))}
    if not by_site:
        return _Explained()
    # There is usually one fault: of what explains the first, take what explains most of the others.
    kinds = [{one.kind for one in found} for found in by_site.values()]
    first = next(iter(by_site.values()))
    reach = [sum(one.kind in found for found in kinds) for one in first]
    leading = [one for one, count in zip(first, reach, strict=True) if count == max(reach)]
    alike, words = _find_shared(by_site, leading)
    explained = [site for site, near in examined.items() if near in alike]
    others = [site for site, near in examined.items() if near in by_site and near not in alike]
    what = " or ".join(words) + (" (both look the same here)" if len(words) > 1 else "")
    clauses = [form.format(where=extent.describe(explained, evidence.judged), words=what)]
    if others:
        clauses.append(f"otherwise explained: {extent.describe(others, evidence.judged)}")
    names = tuple(hypothesis.kind for hypothesis in leading)
    return _Explained(names, tuple(clauses), frozenset([*explained, *others]))


def _sample(sites: Sequence[Site]) -> dict[Site, Site]:
    """Return for each observation the one examined in its stead."""
    every = max(1, -(-len(sites) // _LOOKED_AT))
    return {site: sites[index - index % every] for index, site in enumerate(sites)}


def _find_shared(
    by_site: Mapping[Site, tuple[Hypothesis, ...]], leading: Sequence[Hypothesis]
) -> tuple[list[Site], list[str]]:
    """Return the observations that share the leading explanation's kind or source, and words."""
    kind, source = leading[0].kind, leading[0].source
    of_kind = {
        site: next(one.words for one in found if one.kind == kind)
        for site, found in by_site.items()
        if any(one.kind == kind for one in found)
    }
    of_source = [site for site, found in by_site.items() if source and found[0].source == source]
    if len(of_source) > len(of_kind):
        return of_source, [f"the value of {source}"]
    several = len(set(of_kind.values())) > 1
    words = [_GENERAL.get(one.kind, one.words) if several else one.words for one in leading]
    return list(of_kind), words


def _diagnose_shapes(evidence: Evidence, sites: Sequence[Site]) -> Diagnosis:
    """Find which rows an observation with too many or too few holds."""
    examined = _sample(sites)
    tried = dict.fromkeys(examined.values())
    aligned = {site: label for site in tried if (label := _align(evidence, site))}
    if not aligned:
        concerned = f"concerns {extent.describe(sites, evidence.judged)}"
        return Diagnosis(sentence=concerned if sites else "")
    kind, words = leading = next(iter(aligned.values()))
    alike = [site for site, near in examined.items() if aligned.get(near) == leading]
    return Diagnosis((kind,), f"{extent.describe(alike, evidence.judged)} {words}")


def _align(evidence: Evidence, site: Site) -> tuple[str, str] | None:
    """Return a kind and words for rows found elsewhere in the reference's batch."""
    candidate, reference = evidence.observed[site], evidence.reference
    right = reference.reference_values.get(site)
    if right is None or right.ndim < 2 or not candidate.is_floating_point():
        return None
    if not candidate.ndim or not candidate.numel() or candidate.shape[-1] != right.shape[-1]:
        return None
    batch = {
        other.prompt: reference.known()[other]
        for other in reference.reference_values
        if replace(other, prompt=site.prompt) == site
    }
    limit = 2 * evidence.limits.k_max
    places = [_find_row(row, batch, limit) for row in metrics.rows(candidate)]
    found = [place for place in places if place is not None]
    if len(found) != len(places):
        return None
    return _describe_rows(found, site, len(right), list(candidate.shape))


def _describe_rows(
    found: Sequence[tuple[int, int]], site: Site, length: int, shape: Sequence[int]
) -> tuple[str, str]:
    own = [token for prompt, token in found if prompt == site.prompt]
    if len(own) < len(found):
        prompts = extent.ranges(prompt for prompt, _ in found)
        return "rows-of-batch", f"holds rows of prompts {prompts}"
    if own == list(range(length)):
        return "extra-dimension", f"holds the right rows, in shape {shape}"
    if len(own) == 1:
        return "single-row", f"holds token {own[0]}'s row alone"
    if missing := sorted(set(range(length)) - set(own)):
        kind = "first-rows-missing" if missing[0] == 0 else "rows-missing"
        plural = "s" if len(missing) > 1 else ""
        return kind, f"lacks the row{plural} of tokens {extent.ranges(missing)}"
    twice = extent.ranges(token for token in own if own.count(token) > 1)
    return "rows-repeated", f"holds tokens {twice} more than once"


def _find_row(row: Tensor, batch: Mapping[int, NoisyRows], limit: float) -> tuple[int, int] | None:
    """Return the prompt and token whose row this is, up to `limit` times the noise off."""
    places: list[tuple[float, int, int]] = []
    for prompt, value in batch.items():
        ratios = metrics.ratio(metrics.norm(value.rows - row, value.bulk), value.noise)
        token = int(ratios.argmin())
        places.append((float(ratios[token]), prompt, token))
    best = min(places, key=lambda place: place[0], default=None)
    return None if best is None or best[0] > limit else best[1:]
