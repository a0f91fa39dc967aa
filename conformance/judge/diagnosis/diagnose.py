"""Which known fault explains a failed cell, where it begins, and whom it concerns.

A label never makes a verdict better.
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

#: So many observations are looked at, spread over all that are off.
_LOOKED_AT = 24

_WRONG = frozenset({Verdict.WRONG, Verdict.DRIFT, Verdict.ALIASED})
_WRITE = frozenset({Verdict.DROPPED, Verdict.PARTIAL, Verdict.CONTAMINATED, Verdict.MISSCALED})


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What explains a failed cell: `kinds` for programs (several where they tie), a sentence."""

    kinds: tuple[str, ...] = ()
    sentence: str = ""


def diagnose(evidence: Evidence, decided: Verdict, limits: Limits) -> Diagnosis:
    """Why the cell failed, as far as its own observations show it."""
    judged = evidence.judged
    everything = sorted(judged, key=verdict.order)
    if decided in _WRITE:
        sites = [site for site in everything if site in evidence.effects]
        sites = [site for site in sites if evidence.effects[site].failed]
        return _of_write(evidence, sites, everything, limits)
    if decided in _WRONG:
        sites = [site for site in everything if judged[site].verdict in _WRONG]
        return _of_value(evidence, sites, everything, limits)
    if not decided.fails:
        return Diagnosis()
    sites = [site for site in everything if judged[site].verdict is decided]
    if decided is Verdict.STRUCTURE:
        return _of_shape(evidence, sites, everything, limits)
    if sites and len(sites) < len(judged):
        return Diagnosis(sentence=f"concerns {extent.describe(sites, everything)}")
    return Diagnosis()


def _of_shape(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], limits: Limits
) -> Diagnosis:
    """Which rows there are where there are too many or too few."""
    found: dict[Site, tuple[str, str]] = {}
    seen = _sample(sites)
    for site in dict.fromkeys(seen):
        said = alignment.align(evidence.observed[site], site, evidence.reference, limits)
        if said[0]:
            found[site] = said
    if not found:
        return Diagnosis(sentence=f"concerns {extent.describe(sites, everything)}" if sites else "")
    leading = next(iter(found.values()))
    alike = [site for site, near in zip(sites, seen, strict=True) if found.get(near) == leading]
    return Diagnosis((leading[0],), f"{extent.describe(alike, everything)} {leading[1]}")


def explain_value(evidence: Evidence, site: Site, limits: Limits) -> tuple[Explanation, ...]:
    """What explains the value of one observation; () for what is no activation."""
    if site not in evidence.explained and site in evidence.rows:
        evidence.explained[site] = explain(scenes.value(evidence, site), limits)
    return evidence.explained.get(site, ())


def _of_value(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], limits: Limits
) -> Diagnosis:
    said = _said(
        lambda site: explain_value(evidence, site, limits),
        sites,
        everything,
        "{where} holds {words}",
    )
    parts = list(said.parts)
    if not said.kinds and sites:
        parts.append(f"no known fault explains {extent.describe(sites, everything)}")
    off = [evidence.judged[site] for site in sites]
    every = [evidence.judged[site] for site in everything]
    parts += [extent.goes_on(sites, every), extent.tokens_off(off, limits)]
    return Diagnosis(said.kinds, "; ".join(part for part in parts if part))


def _of_write(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], limits: Limits
) -> Diagnosis:
    """By the change that the write made; where that is unknown, by the value it left."""
    change = _said(
        lambda site: explain(scenes.change(evidence, site), limits),
        sites,
        everything,
        "the effect of the write on {where} is {words}",
    )
    left = [site for site in sites if site not in change.explained]
    value = _said(
        lambda site: explain_value(evidence, site, limits),
        left,
        everything,
        "{where} holds {words}",
    )
    parts = [*change.parts, *value.parts]
    if not parts and sites:
        parts = [f"the write went wrong on {extent.describe(sites, everything)}"]
    return Diagnosis(change.kinds or value.kinds, "; ".join(parts))


@dataclass(frozen=True, slots=True)
class _Said:
    """What explains some observations, in words, and which ones it explains."""

    kinds: tuple[str, ...] = ()
    parts: tuple[str, ...] = ()
    explained: frozenset[Site] = frozenset()


def _said(
    find: Callable[[Site], tuple[Explanation, ...]],
    sites: Sequence[Site],
    everything: Sequence[Site],
    form: str,
) -> _Said:
    """The explanation of the first observation that has one, and which others share it.

    Of many observations every so many is looked at, and stands for those that follow it.
    """
    seen = _sample(sites)
    found = {site: those for site in dict.fromkeys(seen) if (those := find(site))}
    if not found:
        return _Said()
    leading = _leading(found)
    alike, words = _shared(found, leading)
    like = [site for site, nearest in zip(sites, seen, strict=True) if nearest in alike]
    others = [
        site
        for site, nearest in zip(sites, seen, strict=True)
        if nearest in found and nearest not in alike
    ]
    what = " or ".join(words) + (" (they cannot be told apart)" if len(words) > 1 else "")
    parts = [form.format(where=extent.describe(like, everything), words=what)]
    if others:
        parts.append(f"otherwise explained: {extent.describe(others, everything)}")
    kinds = tuple(item.kind for item in leading)
    return _Said(kinds, tuple(parts), frozenset([*like, *others]))


def _leading(found: Mapping[Site, tuple[Explanation, ...]]) -> tuple[Explanation, ...]:
    """What explains the first observation; of a tie that which explains most of the others.

    One fault is at work, as a rule: what cannot be told apart at one layer can at another.
    """
    first = next(iter(found.values()))
    reach = [
        sum(_of_kind(item.kind, those) is not None for those in found.values()) for item in first
    ]
    return tuple(item for item, count in zip(first, reach, strict=True) if count == max(reach))


def _of_kind(kind: str, those: Sequence[Explanation]) -> Explanation | None:
    return next((one for one in those if one.kind == kind), None)


def _sample(sites: Sequence[Site]) -> list[Site]:
    """For each observation the one that is looked at in its stead, every so many."""
    every = max(1, -(-len(sites) // _LOOKED_AT))
    return [sites[index - index % every] for index in range(len(sites))]


def _shared(
    found: Mapping[Site, tuple[Explanation, ...]], leading: Sequence[Explanation]
) -> tuple[list[Site], list[str]]:
    """The observations with the leading explanation: of its kind, or from the same source."""
    own = {site: _of_kind(leading[0].kind, those) for site, those in found.items()}
    kind = [site for site, one in own.items() if one is not None]
    source = [
        site
        for site, those in found.items()
        if leading[0].source and those[0].source == leading[0].source
    ]
    if len(source) > len(kind):
        return source, [f"the value of {leading[0].source}"]
    several = len({one.words for one in own.values() if one is not None}) > 1
    return kind, [
        hypotheses.general(item.kind, item.words) if several else item.words for item in leading
    ]
