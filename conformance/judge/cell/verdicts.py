"""Conclude the cell's verdict and its reason from the evidence."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from conformance.judge.cell import judgement as verdict
from conformance.judge.cell.diagnosis import diagnose, extent
from conformance.judge.cell.evidence import Evidence
from conformance.judge.cell.judgement import Judgement
from conformance.judge.cell.measures.gain import Effect, Landing
from conformance.spec.records import BF16_LIMITS, Precision, Relation, Site, Verdict

Claim = tuple[Verdict, str]

#: Landings with an effect other than the intended one, and those that decide nothing.
_OFF = frozenset({Landing.MISSCALED, Landing.MISDIRECTED})
_UNDECIDED = frozenset({Landing.POWERLESS, Landing.UNTOUCHED})
#: A gain this close to 2 or -1 is one of them.
_ROOM = 0.25
#: The relation that is checked if the clean run is already wrong.
RULE_OF_WRITES = "a write does what it should, though the clean run is off"
#: A correct read-back may come from a copy that nothing uses (docs/numerics.md#the-gain).
_READ_BACK = (
    Verdict.VACUOUS,
    "the write was read back, but nothing after it shows with power that it arrived",
)


def conclude(evidence: Evidence, *, explain: bool = True) -> Judgement:
    """Return the first verdict of the order that applies, with its reason."""
    ordered = sorted(evidence.judged, key=verdict.order)
    observations = tuple(evidence.judged[site] for site in ordered)
    if evidence.has_edit:
        evidence.relations += _rule_of_writes(evidence)
    claims = verdict.claims(observations, evidence.relations)
    if evidence.has_edit:
        claims += _write_claims(evidence, claims)
    decided, reason = verdict.deciding(claims)
    worst = verdict.worst(observations)
    diagnosed = diagnose.diagnose(evidence, decided) if explain else diagnose.Diagnosis()
    return Judgement(
        verdict=decided,
        reason=reason,
        observations=observations,
        relations=tuple(evidence.relations),
        worst_site=worst.site if worst else "",
        worst_ratio=worst.q_max if worst else None,
        harness=decided is Verdict.UNKNOWN,
        diagnosis=diagnosed.sentence,
        explanations=diagnosed.kinds,
    )


def _write_claims(evidence: Evidence, claims: Sequence[Claim]) -> list[Claim]:
    """Return what the gains say about the write.

    Whether the cell has the power to decide depends on the reference alone. If the candidate's
    clean run is already wrong, its gain says little about the write, so `_rule_of_writes` judges
    those observations.
    """
    effects, precision = evidence.effects, evidence.reference.precision
    kinds = {kind for kind, _ in claims}
    if all(effect.landing in _UNDECIDED for effect in effects.values()):
        if Verdict.UNKNOWN in kinds:
            return []
        # If every value equals a baseline run, any change is enough.
        moved = {site for site, effect in effects.items() if effect.moved}
        if kinds != {Verdict.EXACT} or not moved:
            sigmas = [effect.gain.sigma for effect in effects.values() if effect.gain is not None]
            reason = "the write changes nothing that was observed, so nothing was tested"
            if sigmas:
                best = f"the best gain is uncertain by {min(sigmas):.2f}"
                reason = f"the write is too small to be seen above the noise: {best}"
            return [(Verdict.VACUOUS, reason)]
        return [] if _arrived(effects, moved, precision) else [_READ_BACK]
    sound = {
        site: effect for site, effect in effects.items() if not _clean_is_wrong(evidence, site)
    }
    claims = [*_landing_claims(sound), *_leak_claims(sound)]
    landed = {site for site, effect in sound.items() if effect.landing is Landing.LANDED}
    arrived = _arrived(sound, landed, precision)
    # If the observations that could show it are wrong without the write, that decides instead.
    if len(sound) == len(effects) and not claims and not arrived:
        return [_READ_BACK]
    return claims


def _rule_of_writes(evidence: Evidence) -> list[Relation]:
    """Check the write where the clean run is wrong; return a relation only if it fails.

    An entry in known.yaml that excuses the clean run excuses no fault of the write: it must not
    change other rows, must have nearly its full effect, and no side effect of similar size.
    """
    off = {}
    for site, effect in evidence.effects.items():
        if not _clean_is_wrong(evidence, site):
            continue
        goes_wrong = bool(effect.leaking)
        if not goes_wrong and effect.gain is not None and effect.landing not in _UNDECIDED:
            room = max(BF16_LIMITS.gain_tolerance, BF16_LIMITS.gain_sigmas * effect.gain.sigma)
            other = abs(effect.gain.g - 1) > room or effect.gain.h > BF16_LIMITS.off_axis
            goes_wrong = room <= BF16_LIMITS.gain_room and other
        if goes_wrong:
            off[site] = effect
    if not off:
        return []
    leaks = [reason for _, reason in _leak_claims(off)]
    why = leaks[0] if leaks else _gain_words(off, next(iter(off)))
    where = verdict.places([str(site) for site in off])
    return [Relation(RULE_OF_WRITES, holds=False, detail=f"not at {where}: {why}")]


def _arrived(effects: Mapping[Site, Effect], shown: Collection[Site], precision: Precision) -> bool:
    """Return whether an observation downstream of the write is among `shown`, for every prompt.

    A prompt's first observation that the write changes may be a read-back of the write itself. One
    prompt's effect says nothing about another's, but in bf16 one is enough: noise can hide a small
    edit in one prompt and not in the next.
    """
    touched: dict[int, list[Site]] = {}
    for site, effect in effects.items():
        if effect.landing is not Landing.UNTOUCHED:
            touched.setdefault(site.prompt, []).append(site)
    arrived = [
        any(
            site in shown and verdict.depth(site) > min(map(verdict.depth, sites)) for site in sites
        )
        for sites in touched.values()
    ]
    every = all if precision is Precision.FLOAT32 else any
    return bool(arrived) and every(arrived)


def _clean_is_wrong(evidence: Evidence, site: Site) -> bool:
    clean = evidence.judged[Site(site.name, site.prompt, site.step, site.layer, "clean")]
    return clean.verdict in {Verdict.WRONG, Verdict.ALIASED}


def _landing_claims(effects: Mapping[Site, Effect]) -> list[Claim]:
    """Claim dropped, partial or misscaled, from the observations with the power to decide."""

    def sites_with(*landings: Landing) -> list[Site]:
        return [site for site, effect in effects.items() if effect.landing in landings]

    dropped, landed = sites_with(Landing.DROPPED), sites_with(Landing.LANDED)
    partial, off = sites_with(Landing.PARTIAL), sites_with(*_OFF)
    claims = []
    if dropped and not (landed or partial or off):
        reason = f"the write had no effect: {_gain_words(effects, dropped[0])}"
        claims.append((Verdict.DROPPED, reason))
    # In the same step, an observation before one that is off lacks the write.
    late = any(
        verdict.order(site)[:3] == verdict.order(other)[:3]
        and verdict.order(site) < verdict.order(other)
        for site in dropped
        for other in off
    )
    if dropped and (landed or late):
        where = verdict.places([str(site) for site in dropped])
        size = _gain_words(effects, dropped[0])
        reason = f"the write had no effect on {where} ({size}), elsewhere it had"
        claims.append((Verdict.PARTIAL, reason))
    if partial:
        effect = effects[partial[0]]
        without, reached = extent.ranges(effect.without), extent.ranges(effect.reached)
        reason = f"the write had no effect on tokens {without} of {verdict.place(partial[0])}"
        claims.append((Verdict.PARTIAL, f"{reason}, but on tokens {reached}"))
    if off:
        how = "landed with another size"
        gain = effects[off[0]].gain
        g = gain.g if gain else 0.0
        if effects[off[0]].landing is Landing.MISDIRECTED:
            how = "landed in another direction"
        elif abs(g - 2) < _ROOM:
            how = "was applied twice"
        elif abs(g + 1) < _ROOM:
            how = "landed with the opposite sign"
        claims.append((Verdict.MISSCALED, f"the write {how}: {_gain_words(effects, off[0])}"))
    return claims


def _leak_claims(effects: Mapping[Site, Effect]) -> list[Claim]:
    for site, effect in effects.items():
        if effect.leaking:
            where = f"tokens {extent.ranges(effect.leaking)} of {verdict.place(site)}"
            reason = f"the write changed what it must not: {where}, by {effect.leak:.3g} × noise"
            if effect.leak < 1:
                reason += ", where the baseline runs do not change one bit"
            return [(Verdict.CONTAMINATED, reason)]
    return []


def _gain_words(effects: Mapping[Site, Effect], site: Site) -> str:
    gain = effects[site].gain
    if gain is None:
        return verdict.place(site)
    size = f"gain {gain.g:.2f} ± {gain.sigma:.2f}, off-axis {gain.h:.2f}"
    return f"{size} at {verdict.place(site)}"
