"""Which layer introduces an error: every layer judged by what it makes of its own input.

Pure: what float32 and honest bf16 layers make of the candidate's input is observed by a
worker beforehand (`conformance.builtin.one_layer`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from torch import Tensor

from conformance.judge.cell import judge_cell
from conformance.judge.diagnosis import extent
from conformance.judge.reference import read_reference
from conformance.records import Judged, Limits, Precision, Site

#: A candidate's stream may have been rounded where its engine's own was not, which adds to
#: what a single layer is off by: so many times the limits are allowed.
_ROUNDED = 3.0


def place(
    observed: Mapping[str, Tensor],
    members: Mapping[str, Mapping[str, Tensor]],
    prompt_ids: Sequence[Sequence[int]],
    judged: Sequence[Judged],
    limits: Limits,
    precision: Precision = Precision.BF16,
) -> str:
    """The layers that introduce the error and those that inherit it, in words.

    `members` are the reference's layers fed with the candidate's own streams; `judged` are
    the cell's observations.
    """
    own = {
        name: observed[there]
        for name in members.get("truth", {})
        for there in (name, f"clean/{name}")
        if there in observed
    }
    fed = {
        member: {name: value for name, value in values.items() if name in own}
        for member, values in members.items()
    }
    ids = tuple(tuple(one) for one in prompt_ids)
    reference = read_reference(fed, twin=False, precision=precision)
    if isinstance(reference, str):
        return ""
    alone = judge_cell(
        own, reference, twin=False, equal=(), prompt_ids=ids, truth_ids=ids, limits=limits
    )
    layers = {Site.parse(one.site).layer for one in alone.observations if _off(one, limits)}
    introducing = {layer for layer in layers if layer is not None}
    unedited = [one for one in judged if Site.parse(one.site).run != "edited"]
    off = {Site.parse(one.site).layer for one in unedited if not one.verdict.passes}
    if not alone.observations:
        return ""
    return _said(introducing, {layer for layer in off if layer is not None}, head=None in layers)


def _off(judged: Judged, limits: Limits) -> bool:
    if judged.verdict.passes:
        return False
    return judged.q_max is None or judged.q_max > _ROUNDED * limits.k_max


def _said(introducing: Collection[int], off: Collection[int], *, head: bool) -> str:
    with_own_input = "(each layer tried in float32 with this run's own input)"
    if not introducing:
        if head:
            return f"every layer does as it should, the head after them does not {with_own_input}"
        return f"no single layer introduces the error: it builds up slowly {with_own_input}"
    one = len(introducing) == 1
    words = f"layer{'' if one else 's'} {extent.ranges(introducing)} introduce{'s' * one} the error"
    later = {layer for layer in off if layer > min(introducing)} - set(introducing)
    if later:
        one = len(later) == 1
        inherit = f"layer{'' if one else 's'} {extent.ranges(later)} only inherit{'s' * one} it"
        words = f"{words}, {inherit}"
    return f"{words} {with_own_input}"
