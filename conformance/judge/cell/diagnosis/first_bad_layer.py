"""Find the layers that introduce an error: each is judged given its own input.

Pure: a worker (`conformance.spec.builtin.one_layer`) has computed what float32 and bf16 baseline
layers make of the candidate's input.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from conformance.judge.cell.diagnosis import extent
from conformance.judge.cell.judge_cell import distances, judge_cell
from conformance.judge.cell.measures import metrics
from conformance.judge.cell.measures.structure import Ids
from conformance.judge.cell.reference import read_reference
from conformance.spec.records import Judged, Limits, Precision, Relation, Site

#: A candidate's stream may have been rounded where its engine's was not, which adds to the error of
#: a single layer: the limits are multiplied by this.
_ROUNDED = 3.0
#: The name of the relation that is checked if an engine refuses float32.
WITH_OWN_INPUT = "every layer computes what it should of its own input"
#: Fewer tokens give no useful median.
_FEWEST_TOKENS = 4

Observed = Mapping[str, Tensor]


def place(
    observed: Observed,
    members: Mapping[str, Observed],
    prompt_ids: Ids,
    observations: Sequence[Judged],
    limits: Limits,
    precision: Precision = Precision.BF16,
) -> str:
    """Describe which layers introduce the error and which inherit it.

    `members` are the reference's layers fed with the candidate's own streams; `observations` are
    the cell's observations.
    """
    own, fed = _select_fed(observed, members)
    reference = read_reference(fed, has_edit=False, precision=precision)
    if isinstance(reference, str):
        return ""
    alone = judge_cell(
        own, reference, prompt_ids=prompt_ids, reference_ids=prompt_ids, limits=limits
    )
    if not alone.observations:
        return ""
    introducing = _layers_of(
        one
        for one in alone.observations
        if not one.verdict.passes and (one.q_max is None or one.q_max > _ROUNDED * limits.k_max)
    )
    failed = [one for one in observations if not one.verdict.passes]
    off = _layers_of(one for one in failed if Site.parse(one.site).run != "edited")
    return _describe(introducing, off)


def with_own_input(
    observed: Observed, members: Mapping[str, Observed], limits: Limits
) -> Relation | None:
    """Check that every layer maps its input to what bf16 baseline layers do.

    None if no stream has enough tokens. Errors of earlier layers cancel, so this detects errors
    five to ten times smaller than the stream shows. The median over the tokens decides: a router
    may score two experts within one rounding.
    """
    own, fed = _select_fed(observed, members)
    rows = {
        Site.parse(name): metrics.rows(value)
        for name, value in own.items()
        if Site.parse(name).name == "stream" and len(value) >= _FEWEST_TOKENS
    }
    streams = {
        member: {name: value for name, value in values.items() if Site.parse(name) in rows}
        for member, values in fed.items()
    }
    reference = read_reference(streams, has_edit=False)
    if isinstance(reference, str) or any(
        rows[site].shape != metrics.rows(reference.reference_values[site]).shape for site in rows
    ):
        return None
    reference.prepare(rows)
    measured = dict(distances(reference, rows, limits))
    off = {site.layer for site, distance in measured.items() if not distance.q_med <= limits.k_med}
    worst = max(measured, key=lambda site: measured[site].q_med)
    size = f"{measured[worst].q_med:.2f} × noise for the median token after layer {worst.layer}"
    layers = extent.ranges(layer for layer in off if layer is not None)
    words = f"not layers {layers}: up to {size}" if off else f"at most {size}"
    return Relation(WITH_OWN_INPUT, not off, words)


def _select_fed(
    observed: Observed, members: Mapping[str, Observed]
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


def _layers_of(observations: Iterable[Judged]) -> set[int | None]:
    return {Site.parse(observation.site).layer for observation in observations}


def _describe(places: set[int | None], off: set[int | None]) -> str:
    """Describe the places that introduce the error (None: the head), and the layers after them."""
    with_own_input = "(each layer tried in float32 with this run's own input)"
    introducing = {layer for layer in places if layer is not None}
    if not introducing:
        if places:
            return f"every layer does as it should, the head after them does not {with_own_input}"
        return f"no single layer introduces the error: it builds up slowly {with_own_input}"
    words = f"{_subject(introducing, 'introduce')} the error"
    later = {layer for layer in off if layer is not None and layer > min(introducing)}
    if inheriting := later - introducing:
        words = f"{words}, {_subject(inheriting, 'only inherit')} it"
    return f"{words} {with_own_input}"


def _subject(layers: set[int], verb: str) -> str:
    """Return `layer 3 introduces`, or `layers 3-5 introduce`."""
    several = extent.plural(layers)
    return f"layer{several} {extent.ranges(layers)} {verb}{'' if several else 's'}"
