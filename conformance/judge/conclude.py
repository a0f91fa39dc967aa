"""From the evidence to the cell's verdict and its reason in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from conformance.judge import judgement as verdict
from conformance.judge.diagnosis import diagnose, extent
from conformance.judge.evidence import Evidence
from conformance.judge.judgement import Judgement
from conformance.judge.measures.gain import Effect, Landing
from conformance.judge.measures.structure import PROMPT_IDS
from conformance.records import Judged, Limits, Relation, Site, Verdict

#: The write has an effect, but another one.
_OFF = frozenset({Landing.MISSCALED, Landing.MISDIRECTED})


def conclude(evidence: Evidence, limits: Limits, *, explain: bool = True) -> Judgement:
    """The first verdict of the order that fits, with its reason."""
    judged = tuple(evidence.judged[site] for site in sorted(evidence.judged, key=verdict.order))
    claims = [(item.verdict, _observed(item.verdict, judged)) for item in _one_each(judged)]
    claims += [
        _broken(relation)
        for relation in evidence.relations
        if relation.gates and not relation.holds
    ]
    if evidence.twin:
        claims += _interventions(evidence, claims)
    decided = verdict.first([kind for kind, _ in claims])
    reason = next((said for kind, said in claims if kind is decided), "nothing was observed")
    worst = verdict.worst(judged)
    diagnosed = diagnose.diagnose(evidence, decided, limits) if explain else diagnose.Diagnosis()
    return Judgement(
        verdict=decided,
        reason=reason,
        observations=judged,
        relations=tuple(evidence.relations),
        worst_site=worst.site if worst else "",
        worst_ratio=worst.q_max if worst else None,
        harness=decided is Verdict.UNKNOWN,
        diagnosis=diagnosed.sentence,
        explanations=diagnosed.kinds,
    )


def _one_each(judged: Sequence[Judged]) -> list[Judged]:
    return list({item.verdict: item for item in reversed(judged)}.values())


def _observed(kind: Verdict, judged: Sequence[Judged]) -> str:
    """Why the observations of this verdict make it, in words."""
    those = [item for item in judged if item.verdict is kind]
    names = [item.site for item in those]
    worst = verdict.worst(judged)
    furthest = ""
    if worst is not None:
        furthest = f"{worst.q_max:.2f} × noise at {verdict.place(Site.parse(worst.site))}"
    if kind is Verdict.EXACT:
        return f"all {len(judged)} observations are bitwise those of honest runs"
    if kind is Verdict.MATCH:
        within = f"all {len(judged)} observations are within the noise of honest runs"
        return f"{within}; furthest {furthest}" if furthest else within
    said = f"{verdict.places(names)}: {those[0].message}"
    if kind in {Verdict.WRONG, Verdict.DRIFT}:
        return f"{len(those)} of {len(judged)} observations are off, first {said}"
    return said


def _broken(relation: Relation) -> tuple[Verdict, str]:
    kind = Verdict.STRUCTURE if relation.name == PROMPT_IDS else Verdict.WRONG
    return kind, f"does not hold: {relation.name} ({relation.detail})"


def _interventions(
    evidence: Evidence, claims: Sequence[tuple[Verdict, str]]
) -> list[tuple[Verdict, str]]:
    """What the gains say about the write.

    Whether the cell has the power to tell depends on the reference alone. Where the
    candidate's clean run is already wrong its gain says nothing about the write, so
    those observations do not take part.
    """
    effects = evidence.effects
    if not effects and evidence.reference.mixture:
        return [(Verdict.VACUOUS, "gains of a mixture are judged in float32")]
    kinds = {kind for kind, _ in claims}
    if all(effect.landing in {Landing.POWERLESS, Landing.UNTOUCHED} for effect in effects.values()):
        moved = any(effect.moved for effect in effects.values())
        if Verdict.UNKNOWN in kinds or (kinds == {Verdict.EXACT} and moved):
            return []
        return [(Verdict.VACUOUS, _powerless(list(effects.values())))]
    sound = {
        site: effect for site, effect in effects.items() if not _clean_is_wrong(evidence, site)
    }
    claims = [*_landed(sound), *_leaks(sound)]
    if sound and not claims and not _arrived(effects):
        words = "the write was read back, but nothing after it shows with power that it arrived"
        return [(Verdict.VACUOUS, words)]
    return claims


def _arrived(effects: Mapping[Site, Effect]) -> bool:
    """Did the write land at an observation downstream of where it was made?

    The first observation that the truth's write changes may be a read-back of the write itself.
    """
    touched = [site for site, effect in effects.items() if effect.landing is not Landing.UNTOUCHED]
    first = min((verdict.depth(site) for site in touched), default=None)
    return any(
        effects[site].landing is Landing.LANDED and verdict.depth(site) > first
        for site in touched
        if first is not None
    )


def _clean_is_wrong(evidence: Evidence, site: Site) -> bool:
    clean = evidence.judged[Site(site.name, site.prompt, site.step, site.layer, "clean")]
    return clean.verdict in {Verdict.WRONG, Verdict.ALIASED}


def _landed(effects: dict[Site, Effect]) -> list[tuple[Verdict, str]]:
    """Dropped, partial or misscaled, from the observations that have the power to tell."""
    by: dict[Landing, list[Site]] = {landing: [] for landing in Landing}
    for site, effect in effects.items():
        by[effect.landing].append(site)
    dropped, landed, some = by[Landing.DROPPED], by[Landing.LANDED], by[Landing.PARTIAL]
    off = [site for site in effects if effects[site].landing in _OFF]
    found = []
    if dropped and not (landed or some or off):
        said = f"the write had no effect: {_gain(effects, dropped[0])}"
        found.append((Verdict.DROPPED, said))
    late = any(_comes_before(site, other) for site in dropped for other in off)
    if dropped and (landed or late):
        said = f"the write had no effect on {verdict.places([str(site) for site in dropped])}"
        found.append((Verdict.PARTIAL, f"{said} ({_gain(effects, dropped[0])}), elsewhere it had"))
    for site in some[:1]:
        without, reached = (
            extent.ranges(effects[site].without),
            extent.ranges(effects[site].reached),
        )
        said = f"the write had no effect on tokens {without} of {verdict.place(site)}"
        found.append((Verdict.PARTIAL, f"{said}, but on tokens {reached}"))
    if off:
        found.append((Verdict.MISSCALED, f"{_how(effects[off[0]])}: {_gain(effects, off[0])}"))
    return found


def _comes_before(site: Site, other: Site) -> bool:
    """Is the first observed before the second in one and the same step?"""
    one, two = verdict.order(site), verdict.order(other)
    return one[:3] == two[:3] and one < two


def _leaks(effects: dict[Site, Effect]) -> list[tuple[Verdict, str]]:
    leaking = [site for site, effect in effects.items() if effect.leaking]
    if not leaking:
        return []
    effect = effects[leaking[0]]
    where = f"tokens {extent.ranges(effect.leaking)} of {verdict.place(leaking[0])}"
    size = f"by {effect.leak:.3g} × noise"
    if effect.leak < 1:
        size = f"{size}, where honest runs change not one bit"
    said = f"the write changed what it must not: {where}, {size}"
    return [(Verdict.CONTAMINATED, said)]


def _how(effect: Effect) -> str:
    if effect.landing is Landing.MISDIRECTED:
        return "the write landed in another direction"
    g = effect.gain.g if effect.gain else 0.0
    room = 0.25
    if abs(g - 2) < room:
        return "the write was applied twice"
    if abs(g + 1) < room:
        return "the write landed with the opposite sign"
    return "the write landed with another size"


def _gain(effects: dict[Site, Effect], site: Site) -> str:
    found = effects[site].gain
    if found is None:
        return verdict.place(site)
    size = f"gain {found.g:.2f} ± {found.sigma:.2f}, off-axis {found.h:.2f}"
    return f"{size} at {verdict.place(site)}"


def _powerless(effects: Sequence[Effect]) -> str:
    sigmas = [effect.gain.sigma for effect in effects if effect.gain is not None]
    if not sigmas:
        return "the write changes nothing that was observed, so nothing was tested"
    best = f"the best gain is uncertain by {min(sigmas):.2f}"
    return f"the write is too small to be seen above the noise: {best}"
