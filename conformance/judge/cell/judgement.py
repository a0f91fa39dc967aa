"""From the evidence to one verdict: the order of precedence, and the reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from conformance.judge.cell.measures.structure import PROMPT_IDS
from conformance.spec.records import Answer, Judged, Precision, Relation, Site, Verdict, record

#: The first verdict that applies decides. Only a proven failure outranks `unknown`.
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


@record()
class Judgement:
    """A cell's verdict with the evidence for it.

    `worst_ratio` is the largest error in multiples of the noise floor, at `worst_site`. `harness`
    marks an `unknown` that the harness has to fix. `diagnosis` is empty or a sentence that explains
    a failure; `explanations` are its names for programs (several if they tie).
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

    def answer(self, precision: Precision, **more: Any) -> Answer:
        """Return it as one precision's answer; `more` are further fields, or others instead."""
        own = {each.name: getattr(self, each.name) for each in fields(self)}
        del own["explanations"]
        return Answer(precision, **own | more)


def unknown(reason: str) -> Judgement:
    """Return an `unknown`: the harness lacks data to judge, which is never a pass."""
    return Judgement(Verdict.UNKNOWN, reason, harness=True)


def worst(observations: Sequence[Judged]) -> Judged | None:
    """Return the observation furthest from the reference, in multiples of the noise floor."""
    measured = [observation for observation in observations if observation.q_max is not None]
    return max(measured, key=lambda observation: observation.q_max or 0.0, default=None)


def claims(
    observations: Sequence[Judged], relations: Sequence[Relation]
) -> list[tuple[Verdict, str]]:
    """Return each verdict of the observations once, with its reason, and the broken relations."""
    kinds = dict.fromkeys(observation.verdict for observation in observations)
    claimed = [(kind, reason_of(kind, observations)) for kind in kinds]
    for relation in relations:
        if relation.gates and not relation.holds:
            kind = Verdict.STRUCTURE if relation.name == PROMPT_IDS else Verdict.WRONG
            claimed.append((kind, f"does not hold: {relation.name} ({relation.detail})"))
    return claimed


def deciding(claimed: Sequence[tuple[Verdict, str]]) -> tuple[Verdict, str]:
    """Return the claim that decides: the first of its verdict; `unknown` if there is none."""
    nothing = (Verdict.UNKNOWN, "nothing was observed")
    return min(claimed, key=lambda claim: ORDER.index(claim[0]), default=nothing)


def reason_of(kind: Verdict, observations: Sequence[Judged]) -> str:
    """Return why the observations have this verdict."""
    concerned = [observation for observation in observations if observation.verdict is kind]
    if kind is Verdict.EXACT:
        return f"all {len(observations)} observations are bitwise those of baseline runs"
    if kind is Verdict.MATCH:
        words = f"all {len(observations)} observations are within the noise of baseline runs"
        if (furthest := worst(observations)) is not None:
            at = place(Site.parse(furthest.site))
            words += f"; furthest {furthest.q_max:.2f} × noise at {at}"
        return words
    words = f"{places([one.site for one in concerned])}: {concerned[0].message}"
    if kind in {Verdict.WRONG, Verdict.DRIFT}:
        return f"{len(concerned)} of {len(observations)} observations are off, first {words}"
    return words


def order(site: Site) -> tuple[str, int, int, float, str]:
    """Sort key for the order in which observations are made: by layer, those without one last."""
    layer = math.inf if site.layer is None else site.layer
    return site.run, site.prompt, site.step, layer, site.name


def depth(site: Site) -> tuple[int, float]:
    """Return how late in a run an observation is made: by step, then layer, logits last."""
    return site.step, math.inf if site.layer is None else site.layer


def place(site: Site) -> str:
    """Describe where an observation was made: "logits of prompt 1, step 2, edited run"."""
    name = site.name if site.layer is None else f"{site.name} after layer {site.layer}"
    parts = [f"{name} of prompt {site.prompt}"]
    if site.step:
        parts.append(f"step {site.step}")
    if site.run:
        parts.append(f"{site.run} run")
    return ", ".join(parts)


def places(sites: Sequence[str], limit: int = 3) -> str:
    """Describe the first few places and how many more there are."""
    words = "; ".join(place(Site.parse(site)) for site in sites[:limit])
    return words if len(sites) <= limit else f"{words} and {len(sites) - limit} more"
