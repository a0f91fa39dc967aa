"""From the evidence to one verdict: the order of decision, and the words for it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from conformance.judge.measures.structure import PROMPT_IDS
from conformance.records import Judged, Relation, Site, Verdict, record

#: The first that fits decides a cell. `unknown` yields to a proven failure and to nothing else.
ORDER = (
    Verdict.MISSING,
    Verdict.STRUCTURE,
    Verdict.DTYPE,
    Verdict.NONFINITE,
    Verdict.ALIASED,
    Verdict.VACUOUS,
    Verdict.DROPPED,
    Verdict.PARTIAL,
    Verdict.CONTAMINATED,
    Verdict.MISSCALED,
    Verdict.WRONG,
    Verdict.UNKNOWN,
    Verdict.DRIFT,
    Verdict.MATCH,
    Verdict.EXACT,
)

NOTHING = "nothing was observed"


@record()
class Judgement:
    """A cell's verdict with the evidence for it.

    `worst_ratio` is the largest error in multiples of the noise floor, at `worst_site`.
    `harness` marks an `unknown` that is ours to mend. `diagnosis` is empty, or says in
    words what explains a failure; `explanations` names it for programs (several: they tie).
    """

    verdict: Verdict
    reason: str
    observations: tuple[Judged, ...] = ()
    relations: tuple[Relation, ...] = ()
    worst_site: str = ""
    worst_ratio: float | None = None
    harness: bool = False
    diagnosis: str = ""
    explanations: tuple[str, ...] = ()


def unknown(reason: str, relations: Sequence[Relation] = ()) -> Judgement:
    """The harness lacks what it takes to judge: never a pass."""
    return Judgement(Verdict.UNKNOWN, reason, relations=tuple(relations), harness=True)


def first(verdicts: Sequence[Verdict]) -> Verdict:
    """The verdict that decides. Of nothing, `unknown`."""
    return min(verdicts, key=ORDER.index, default=Verdict.UNKNOWN)


def worst(observations: Sequence[Judged]) -> Judged | None:
    """The observation furthest from the truth, in multiples of the floor."""
    measured = [observation for observation in observations if observation.q_max is not None]
    return max(measured, key=lambda observation: observation.q_max or 0.0, default=None)


def claims(
    observations: Sequence[Judged], relations: Sequence[Relation]
) -> list[tuple[Verdict, str]]:
    """What the observations are, each verdict once with its reason, and what does not hold."""
    kinds = {observation.verdict: None for observation in observations}
    claimed = [(kind, _reason_of(kind, observations)) for kind in kinds]
    broken = [relation for relation in relations if relation.gates and not relation.holds]
    return claimed + [_broken_claim(relation) for relation in broken]


def deciding(claimed: Sequence[tuple[Verdict, str]]) -> tuple[Verdict, str]:
    """The claim that decides: the first of its verdict. Of nothing, `unknown`."""
    decided = first([kind for kind, _ in claimed])
    return next((claim for claim in claimed if claim[0] is decided), (decided, NOTHING))


def _reason_of(kind: Verdict, observations: Sequence[Judged]) -> str:
    """Why the observations of this verdict make it, in words."""
    concerned = [observation for observation in observations if observation.verdict is kind]
    names = [observation.site for observation in concerned]
    furthest_off = worst(observations)
    furthest = ""
    if furthest_off is not None:
        at = place(Site.parse(furthest_off.site))
        furthest = f"{furthest_off.q_max:.2f} × noise at {at}"
    if kind is Verdict.EXACT:
        return f"all {len(observations)} observations are bitwise those of honest runs"
    if kind is Verdict.MATCH:
        within = f"all {len(observations)} observations are within the noise of honest runs"
        return f"{within}; furthest {furthest}" if furthest else within
    words = f"{places(names)}: {concerned[0].message}"
    if kind in {Verdict.WRONG, Verdict.DRIFT}:
        return f"{len(concerned)} of {len(observations)} observations are off, first {words}"
    return words


def _broken_claim(relation: Relation) -> tuple[Verdict, str]:
    kind = Verdict.STRUCTURE if relation.name == PROMPT_IDS else Verdict.WRONG
    return kind, f"does not hold: {relation.name} ({relation.detail})"


def order(site: Site) -> tuple[str, int, int, float, str]:
    """Sorts observations as they are made: layer by layer, what has no layer last."""
    layer = math.inf if site.layer is None else site.layer
    return site.run, site.prompt, site.step, layer, site.name


def depth(site: Site) -> tuple[int, float]:
    """How far along a run an observation is made: by step, then by layer, the logits last."""
    return site.step, math.inf if site.layer is None else site.layer


def place(site: Site) -> str:
    """Where an observation was made, in words: "logits of prompt 1, step 2, edited run"."""
    name = site.name if site.layer is None else f"{site.name} after layer {site.layer}"
    parts = [f"{name} of prompt {site.prompt}"]
    if site.step:
        parts.append(f"step {site.step}")
    if site.run:
        parts.append(f"{site.run} run")
    return ", ".join(parts)


def places(sites: Sequence[str], limit: int = 3) -> str:
    """The first few places and how many more there are."""
    words = "; ".join(place(Site.parse(site)) for site in sites[:limit])
    return words if len(sites) <= limit else f"{words} and {len(sites) - limit} more"
