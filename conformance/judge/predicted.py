"""Compare a candidate with another definition of the model as strictly as with the reference.

What the definition adds to the reference is subtracted from the candidate. The remainder is judged
as usual: values, gains and leaks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from conformance.judge.measures import texts
from conformance.records import DEFINITION

Observed = Mapping[str, Tensor]


def definitions(members: Mapping[str, Observed]) -> dict[str, Observed]:
    """Return the observations of each definition of the model in `members`, by its name."""
    return {
        name.removeprefix(DEFINITION): values
        for name, values in members.items()
        if name.startswith(DEFINITION)
    }


def without(candidate: Observed, truth: Observed, defined: Observed) -> dict[str, Tensor]:
    """Subtract from the candidate what the definition adds to the reference."""
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
