"""Find which known fault explains a failed cell, where it begins, and what it affects.

A diagnosis never improves a verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from conformance.judge import judgement as verdict
from conformance.judge.diagnosis import alignment, extent, hypotheses, scenes
from conformance.judge.diagnosis.explanation import explain
from conformance.judge.diagnosis.predictions import Explanation
from conformance.judge.evidence import Evidence
from conformance.records import Limits, Site, Verdict

#: How many observations are examined, spread over all that are off.
_LOOKED_AT = 24

_WRONG = frozenset({Verdict.WRONG, Verdict.DRIFT, Verdict.ALIASED})
_WRITE = frozenset({Verdict.DROPPED, Verdict.PARTIAL, Verdict.CONTAMINATED, Verdict.MISSCALED})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What explains a failed cell: `kinds` for programs (several if they tie), and a sentence."""

    kinds: tuple[str, ...] = ()
    sentence: str = ""


def diagnose(evidence: Evidence, decided: Verdict, limits: Limits) -> Diagnosis:
    """Return why the cell failed, as far as its own observations show it."""
    observations = evidence.judged
    everything = sorted(observations, key=verdict.order)
    if decided in _WRITE:
        sites = [site for site in everything if site in evidence.effects]
        sites = [site for site in sites if evidence.effects[site].failed]
        return _of_write(evidence, sites, everything, limits)
    if decided in _WRONG:
        sites = [site for site in everything if observations[site].verdict in _WRONG]
        return _of_value(evidence, sites, everything, limits)
    if not decided.fails:
        return Diagnosis()
    sites = [site for site in everything if observations[site].verdict is decided]
    if decided is Verdict.STRUCTURE:
        return _of_shape(evidence, sites, everything, limits)
    if sites and len(sites) < len(observations):
        return Diagnosis(sentence=f"concerns {extent.describe(sites, everything)}")
    return Diagnosis()


def _of_shape(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], limits: Limits
) -> Diagnosis:
    """Find which rows an observation with too many or too few holds."""
    aligned: dict[Site, tuple[str, str]] = {}
    sampled = _sample(sites)
    for site in dict.fromkeys(sampled):
        label = alignment.align(evidence.observed[site], site, evidence.reference, limits)
        if label[0]:
            aligned[site] = label
    if not aligned:
        return Diagnosis(sentence=f"concerns {extent.describe(sites, everything)}" if sites else "")
    leading = next(iter(aligned.values()))
    alike = [
        site for site, near in zip(sites, sampled, strict=True) if aligned.get(near) == leading
    ]
    return Diagnosis((leading[0],), f"{extent.describe(alike, everything)} {leading[1]}")


def explain_value(evidence: Evidence, site: Site, limits: Limits) -> tuple[Explanation, ...]:
    """Return what explains the value of one observation; () if it is no activation."""
    if site not in evidence.explained and site in evidence.rows:
        evidence.explained[site] = explain(scenes.value(evidence, site), limits)
    return evidence.explained.get(site, ())


def _of_value(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], limits: Limits
) -> Diagnosis:
    explained = _explained(
        lambda site: explain_value(evidence, site, limits),
        sites,
        everything,
        "{where} holds {words}",
    )
    clauses = list(explained.clauses)
    if not explained.kinds and sites:
        clauses.append(f"no fault of the catalogue explains {extent.describe(sites, everything)}")
    off = [evidence.judged[site] for site in sites]
    every = [evidence.judged[site] for site in everything]
    clauses += [extent.goes_on(sites, every), extent.tokens_off(off, limits)]
    return Diagnosis(explained.kinds, "; ".join(clause for clause in clauses if clause))


def _of_write(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], limits: Limits
) -> Diagnosis:
    """Explain the change that the write made, or else the value that it left."""
    change = _explained(
        lambda site: explain(scenes.change(evidence, site), limits),
        sites,
        everything,
        "the effect of the write on {where} is {words}",
    )
    unexplained = [site for site in sites if site not in change.explained]
    value = _explained(
        lambda site: explain_value(evidence, site, limits),
        unexplained,
        everything,
        "{where} holds {words}",
    )
    clauses = [*change.clauses, *value.clauses]
    if not clauses and sites:
        clauses = [f"the write went wrong on {extent.describe(sites, everything)}"]
    return Diagnosis(change.kinds or value.kinds, "; ".join(clauses))


@dataclass(frozen=True, slots=True)
class _Explained:
    """What explains some observations, and which ones it explains."""

    kinds: tuple[str, ...] = ()
    clauses: tuple[str, ...] = ()
    explained: frozenset[Site] = frozenset()


def _explained(
    find: Callable[[Site], tuple[Explanation, ...]],
    sites: Sequence[Site],
    everything: Sequence[Site],
    form: str,
) -> _Explained:
    """Return the explanation of the first observation that has one, and which others share it.

    Of many observations every n-th is examined, and stands for those that follow it.
    """
    sampled = _sample(sites)
    by_site = {
        site: explanations for site in dict.fromkeys(sampled) if (explanations := find(site))
    }
    if not by_site:
        return _Explained()
    leading = _leading(by_site)
    alike, words = _shared(by_site, leading)
    explained = [site for site, nearest in zip(sites, sampled, strict=True) if nearest in alike]
    otherwise = [
        site
        for site, nearest in zip(sites, sampled, strict=True)
        if nearest in by_site and nearest not in alike
    ]
    what = " or ".join(words) + (" (both look the same here)" if len(words) > 1 else "")
    parts = [form.format(where=extent.describe(explained, everything), words=what)]
    if otherwise:
        parts.append(f"otherwise explained: {extent.describe(otherwise, everything)}")
    kinds = tuple(explanation.kind for explanation in leading)
    return _Explained(kinds, tuple(parts), frozenset([*explained, *otherwise]))


def _leading(by_site: Mapping[Site, tuple[Explanation, ...]]) -> tuple[Explanation, ...]:
    """Return what explains the first observation; if tied, what explains most of the others.

    There is usually one fault: what is ambiguous at one layer may not be at another.
    """
    first = next(iter(by_site.values()))
    reach = [
        sum(
            _of_kind(explanation.kind, explanations) is not None
            for explanations in by_site.values()
        )
        for explanation in first
    ]
    return tuple(
        explanation for explanation, count in zip(first, reach, strict=True) if count == max(reach)
    )


def _of_kind(kind: str, explanations: Sequence[Explanation]) -> Explanation | None:
    return next((explanation for explanation in explanations if explanation.kind == kind), None)


def _sample(sites: Sequence[Site]) -> list[Site]:
    """Return for each observation the one examined in its stead."""
    every = max(1, -(-len(sites) // _LOOKED_AT))
    return [sites[index - index % every] for index in range(len(sites))]


def _shared(
    by_site: Mapping[Site, tuple[Explanation, ...]], leading: Sequence[Explanation]
) -> tuple[list[Site], list[str]]:
    """Return the observations that share the leading explanation's kind or source, and words."""
    of_kind = {
        site: _of_kind(leading[0].kind, explanations) for site, explanations in by_site.items()
    }
    kind = [site for site, explanation in of_kind.items() if explanation is not None]
    source = [
        site
        for site, explanations in by_site.items()
        if leading[0].source and explanations[0].source == leading[0].source
    ]
    if len(source) > len(kind):
        return source, [f"the value of {leading[0].source}"]
    several = (
        len({explanation.words for explanation in of_kind.values() if explanation is not None}) > 1
    )
    return kind, [
        hypotheses.general(explanation.kind, explanation.words) if several else explanation.words
        for explanation in leading
    ]
