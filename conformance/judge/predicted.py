"""Does a candidate hold what another definition of the model predicts, as strictly as the truth?

By what the definition adds to the truth: this is taken from the candidate, and what is left is
judged as ever, values, gains and leaks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from conformance.judge.measures import texts
from conformance.records import DEFINITION

Observed = Mapping[str, Tensor]


def definitions(members: Mapping[str, Observed]) -> dict[str, Observed]:
    """What each definition gives, by its name, of all that a reference holds."""
    return {
        name.removeprefix(DEFINITION): values
        for name, values in members.items()
        if name.startswith(DEFINITION)
    }


def without(candidate: Observed, truth: Observed, defined: Observed) -> dict[str, Tensor]:
    """The candidate without what the definition adds to the truth."""
    return {
        site: _without(value, truth.get(site), defined.get(site))
        for site, value in candidate.items()
    }


def _without(value: Tensor, truth: Tensor | None, defined: Tensor | None) -> Tensor:
    if truth is None or defined is None or not value.shape == truth.shape == defined.shape:
        return value
    if texts.is_text(value) or not (value.is_floating_point() and truth.is_floating_point()):
        same = value.dtype == truth.dtype == defined.dtype
        return truth if same and bool((value == defined).all()) else value
    return (value.double() - (defined.double() - truth.double())).to(value.dtype)
