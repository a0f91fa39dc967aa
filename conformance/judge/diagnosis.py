"""Which known fault explains a value that is wrong, and where it begins.

Each hypothesis predicts the value that a fault would have produced. One is accepted when
the candidate agrees with its prediction within noise and with no other prediction, the
truth included, less than three times worse; else the tie is said. A label never makes
a verdict better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from conformance.judge import alignment, extent, hypotheses, metrics, scenes, verdict
from conformance.judge.evidence import Evidence
from conformance.judge.floor import median_limit
from conformance.judge.predictions import Explanation, Hypothesis, Scene
from conformance.records import Site, Thresholds, Verdict

#: A prediction's noise is itself estimated; it may be this much larger than said.
_SLACK = 2.0
#: The runner-up must be this much worse.
_CLEARLY = 3.0
#: So many observations are looked at; the first ones say where a fault begins.
_LOOKED_AT = 24

_WRONG = frozenset({Verdict.WRONG, Verdict.DRIFT, Verdict.ALIASED})
_WRITE = frozenset({Verdict.DROPPED, Verdict.PARTIAL, Verdict.CONTAMINATED, Verdict.MISSCALED})


#: What it says, what it predicts, whether that fits, and its place in the proposals.
Candidate = tuple[Explanation, Hypothesis, bool, int]


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What explains a failed cell: `kinds` for programs (several where they tie), a sentence."""

    kinds: tuple[str, ...] = ()
    sentence: str = ""


def explain(scene: Scene, off: Tensor, thresholds: Thresholds) -> tuple[Explanation, ...]:
    """The hypotheses that explain the rows which are off (bool [T]); () when none does.

    More than one means that they cannot be told apart.
    """
    found: list[Candidate] = []
    for order, hypothesis in enumerate(hypotheses.propose(scene)):
        rows = off & hypothesis.valid
        if int(rows.sum()) * 2 < int(off.sum()) or not bool(rows.any()):
            continue
        ratios = _ratios(scene, hypothesis, rows)
        fits = (
            metrics.median(ratios.tolist()) <= _SLACK * median_limit(len(ratios), thresholds)
            and float(ratios.max()) <= _SLACK * thresholds.k_max
        )
        ratio = float(ratios.square().mean().sqrt())
        said = Explanation(hypothesis.kind, hypothesis.words, ratio)
        found.append((said, hypothesis, fits, order))
    found.sort(key=lambda item: (not item[2], item[0].ratio))
    if not found or not found[0][2]:
        return ()
    best = _simplest(scene, found, off)
    others = [item for item in found if item is not best]
    own, every = scene.own, torch.ones_like(off)
    if len(scene.rows) == len(own.rows):
        truth = _ratios(scene, Hypothesis("", "", own.rows, own.noise, every), off)
        if float(truth.square().mean().sqrt()) < _CLEARLY * best[0].ratio:
            return ()
    tied = [best]
    for item in others:
        near = item[0].ratio < _CLEARLY * best[0].ratio
        if near and not any(_alike(scene, item[1], other[1], off) for other in tied):
            tied.append(item)
    return tuple(item[0] for item in tied)


def _simplest(scene: Scene, found: Sequence[Candidate], off: Tensor) -> Candidate:
    """Of those that predict what the best one does, the first proposed: it is the simplest."""
    best = found[0]
    limit = _CLEARLY * best[0].ratio
    near = [item for item in found if item[2] and item[0].ratio <= limit]
    same = [item for item in near if _alike(scene, item[1], best[1], off)]
    return min(same, key=lambda item: item[3])


def _ratios(scene: Scene, hypothesis: Hypothesis, which: Tensor) -> Tensor:
    """The distance of some rows from a prediction, over its noise.

    On the dimensions which are massive neither in the prediction nor in the truth: what
    is left of a massive value when another is taken from it is mostly rounding.
    """
    predicted = hypothesis.rows[which]
    mask = metrics.bulk(predicted)
    if len(scene.rows) == len(scene.own.rows):
        mask = mask & metrics.bulk(scene.own.rows[which])
    return metrics.ratio(metrics.norm(scene.rows[which] - predicted, mask), hypothesis.noise[which])


def _alike(scene: Scene, left: Hypothesis, right: Hypothesis, off: Tensor) -> bool:
    """Are two hypotheses one fault under two names: of one kind, or the same within noise?"""
    if left.kind == right.kind:
        return True
    rows = off & left.valid & right.valid
    if not bool(rows.any()):
        return False
    predicted = replace(scene, rows=left.rows)
    return bool((_ratios(predicted, right, rows) <= 1.0).all())


def diagnose(evidence: Evidence, decided: Verdict, thresholds: Thresholds) -> Diagnosis:
    """Why the cell failed, as far as its own observations show it."""
    judged = evidence.judged
    everything = sorted(judged, key=verdict.order)
    if decided in _WRITE:
        sites = [site for site in everything if site in evidence.effects]
        sites = [site for site in sites if evidence.effects[site].failed]
        return _of_write(evidence, sites, everything, thresholds)
    if decided in _WRONG:
        sites = [site for site in everything if judged[site].verdict in _WRONG]
        return _of_value(evidence, sites, everything, thresholds)
    if not decided.fails:
        return Diagnosis()
    sites = [site for site in everything if judged[site].verdict is decided]
    if decided is Verdict.STRUCTURE:
        return _of_shape(evidence, sites, everything, thresholds)
    if sites and len(sites) < len(judged):
        return Diagnosis(sentence=f"concerns {extent.describe(sites, everything)}")
    return Diagnosis()


def _of_shape(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], thresholds: Thresholds
) -> Diagnosis:
    """Which rows there are where there are too many or too few."""
    found: dict[Site, tuple[str, str]] = {}
    for site in sites[:_LOOKED_AT]:
        said = alignment.align(evidence.observed[site], site, evidence.reference, thresholds)
        if said[0]:
            found[site] = said
    if not found:
        return Diagnosis(sentence=f"concerns {extent.describe(sites, everything)}" if sites else "")
    leading = next(iter(found.values()))
    alike = [site for site, said in found.items() if said == leading]
    return Diagnosis((leading[0],), f"{extent.describe(alike, everything)} {leading[1]}")


def explain_value(
    evidence: Evidence, site: Site, thresholds: Thresholds
) -> tuple[Explanation, ...]:
    """What explains the value of one observation; () for what is no activation."""
    if site not in evidence.explained and site in evidence.rows:
        scene = scenes.value(evidence, site)
        evidence.explained[site] = explain(scene, _off(scene, thresholds), thresholds)
    return evidence.explained.get(site, ())


def _of_value(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], thresholds: Thresholds
) -> Diagnosis:
    found = {site: explain_value(evidence, site, thresholds) for site in sites[:_LOOKED_AT]}
    kinds, parts = _said(found, everything, "{where} holds {words}")
    off = [evidence.judged[site] for site in sites]
    every = [evidence.judged[site] for site in everything]
    if not kinds and sites:
        parts.append(f"no known fault explains {extent.describe(sites, everything)}")
    parts += [extent.goes_on(sites, every), extent.tokens_off(off, thresholds)]
    return Diagnosis(kinds, "; ".join(part for part in parts if part))


def _of_write(
    evidence: Evidence, sites: Sequence[Site], everything: Sequence[Site], thresholds: Thresholds
) -> Diagnosis:
    changes: dict[Site, tuple[Explanation, ...]] = {}
    values: dict[Site, tuple[Explanation, ...]] = {}
    for site in sites[:_LOOKED_AT]:
        scene = scenes.change(evidence, site)
        found = explain(scene, _off(scene, thresholds), thresholds)
        if found:
            changes[site] = found
        else:
            values[site] = explain_value(evidence, site, thresholds)
    kinds, parts = _said(changes, everything, "the effect of the write on {where} is {words}")
    more, also = _said(values, everything, "{where} holds {words}")
    if not (kinds or more) and sites:
        also = [f"the write went wrong on {extent.describe(sites, everything)}"]
    return Diagnosis(kinds or more, "; ".join(parts + also))


def _said(
    found: Mapping[Site, tuple[Explanation, ...]], everything: Sequence[Site], form: str
) -> tuple[tuple[str, ...], list[str]]:
    """The explanation of the first observation that has one, and which others share it."""
    explained = {site: those for site, those in found.items() if those}
    if not explained:
        return (), []
    leading = next(iter(explained.values()))
    alike = [site for site, those in explained.items() if those[0].kind == leading[0].kind]
    several = len({explained[site][0].words for site in alike}) > 1
    words = [
        hypotheses.general(item.kind, item.words) if several else item.words for item in leading
    ]
    what = " or ".join(words) + (" (they cannot be told apart)" if len(words) > 1 else "")
    parts = [form.format(where=extent.describe(alike, everything), words=what)]
    others = [site for site in explained if site not in alike]
    if others:
        parts.append(f"otherwise explained: {extent.describe(others, everything)}")
    return tuple(item.kind for item in leading), parts


def _off(scene: Scene, thresholds: Thresholds) -> Tensor:
    """The rows that differ from the truth; all of them where none does by itself."""
    own = scene.own
    if len(scene.rows) != len(own.rows):
        return torch.ones(len(scene.rows), dtype=torch.bool)
    itself = Hypothesis("", "", own.rows, own.noise, torch.ones(len(own.rows)))
    every = torch.ones(len(own.rows), dtype=torch.bool)
    off = _ratios(scene, itself, every) > thresholds.k_max
    return off if bool(off.any()) else every
