"""Find the layers that introduce an error: each is judged given its own input.

Pure: a worker (`conformance.builtin.one_layer`) has computed what float32 and bf16 baseline layers
make of the candidate's input.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from conformance.judge.cell import judge_cell
from conformance.judge.diagnosis import extent
from conformance.judge.measures import floor, metrics
from conformance.judge.reference import read_reference
from conformance.records import Judged, Limits, Precision, Relation, Site

#: A candidate's stream may have been rounded where its engine's was not, which adds to the error of
#: a single layer: the limits are multiplied by this.
_ROUNDED = 3.0
#: The name of the relation that is checked if an engine refuses float32.
WITH_OWN_INPUT = "every layer computes what it should of its own input"
#: Fewer tokens give no useful median.
_FEWEST_TOKENS = 4


def place(
    observed: Mapping[str, Tensor],
    members: Mapping[str, Mapping[str, Tensor]],
    prompt_ids: Sequence[Sequence[int]],
    observations: Sequence[Judged],
    limits: Limits,
    precision: Precision = Precision.BF16,
) -> str:
    """Describe which layers introduce the error and which inherit it.

    `members` are the reference's layers fed with the candidate's own streams; `observations` are
    the cell's observations.
    """
    own, fed = _fed(observed, members)
    ids = tuple(tuple(ids_of_prompt) for ids_of_prompt in prompt_ids)
    reference = read_reference(fed, has_edit=False, precision=precision)
    if isinstance(reference, str):
        return ""
    alone = judge_cell(
        own, reference, has_edit=False, equal=(), prompt_ids=ids, reference_ids=ids, limits=limits
    )
    layers = {
        Site.parse(observation.site).layer
        for observation in alone.observations
        if _off(observation, limits)
    }
    introducing = {layer for layer in layers if layer is not None}
    unedited = [
        observation for observation in observations if Site.parse(observation.site).run != "edited"
    ]
    off = {
        Site.parse(observation.site).layer
        for observation in unedited
        if not observation.verdict.passes
    }
    if not alone.observations:
        return ""
    return _words(introducing, {layer for layer in off if layer is not None}, head=None in layers)


def with_own_input(
    observed: Mapping[str, Tensor],
    members: Mapping[str, Mapping[str, Tensor]],
    limits: Limits,
) -> Relation | None:
    """Check that every layer maps its input to what bf16 baseline layers do.

    None if no stream has enough tokens. Errors of earlier layers cancel, so this detects errors
    five to ten times smaller than the stream shows. The median over the tokens decides: a router
    may score two experts within one rounding.
    """
    own, fed = _fed(observed, members)
    streams = {
        Site.parse(name): value for name, value in own.items() if Site.parse(name).name == "stream"
    }
    rows = {
        site: metrics.rows(value) for site, value in streams.items() if len(value) >= _FEWEST_TOKENS
    }
    names = set(map(str, rows))
    reference = read_reference(
        {member: {n: v for n, v in values.items() if n in names} for member, values in fed.items()},
        has_edit=False,
    )
    if isinstance(reference, str) or any(
        rows[site].shape != metrics.rows(reference.reference_values[site]).shape for site in rows
    ):
        return None
    reference.prepare(rows)
    measured = {site: floor.measure(rows[site], reference.floor(site), limits) for site in rows}
    off = [site for site, distance in measured.items() if not distance.q_med <= limits.k_med]
    worst = max(measured, key=lambda site: measured[site].q_med)
    size = f"{measured[worst].q_med:.2f} × noise for the median token after layer {worst.layer}"
    layers = extent.ranges({site.layer for site in off if site.layer is not None})
    words = f"not layers {layers}: up to {size}" if off else f"at most {size}"
    return Relation(WITH_OWN_INPUT, not off, words)


def _fed(
    observed: Mapping[str, Tensor], members: Mapping[str, Mapping[str, Tensor]]
) -> tuple[dict[str, Tensor], dict[str, dict[str, Tensor]]]:
    """Return the outputs of the candidate's layers, and the reference's for the same input."""
    own = {
        name: observed[in_run]
        for name in members.get("truth", {})
        for in_run in (name, f"clean/{name}")
        if in_run in observed
    }
    fed = {
        member: {name: value for name, value in values.items() if name in own}
        for member, values in members.items()
    }
    return own, fed


def _off(observation: Judged, limits: Limits) -> bool:
    if observation.verdict.passes:
        return False
    return observation.q_max is None or observation.q_max > _ROUNDED * limits.k_max


def _words(introducing: Collection[int], off: Collection[int], *, head: bool) -> str:
    with_own_input = "(each layer tried in float32 with this run's own input)"
    if not introducing:
        if head:
            return f"every layer does as it should, the head after them does not {with_own_input}"
        return f"no single layer introduces the error: it builds up slowly {with_own_input}"
    single = len(introducing) == 1
    layers = f"layer{'' if single else 's'} {extent.ranges(introducing)}"
    words = f"{layers} introduce{'s' * single} the error"
    later = {layer for layer in off if layer > min(introducing)} - set(introducing)
    if later:
        single = len(later) == 1
        layers = f"layer{'' if single else 's'} {extent.ranges(later)}"
        words = f"{words}, {layers} only inherit{'s' * single} it"
    return f"{words} {with_own_input}"
