"""Compare a candidate with another definition of the model as strictly as with the reference.

What the definition adds to the reference is subtracted from the candidate. The remainder is judged
as usual: values, gains and leaks. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from conformance.judge.measures.structure import is_text
from conformance.records import DEFINITION

Observed = Mapping[str, Tensor]


def definitions(members: Mapping[str, Observed]) -> dict[str, Observed]:
    """Return the observations of each definition of the model in `members`, by its name."""
    return {
        name.removeprefix(DEFINITION): values
        for name, values in members.items()
        if name.startswith(DEFINITION)
    }


def without(candidate: Observed, reference: Observed, defined: Observed) -> dict[str, Tensor]:
    """Subtract from the candidate what the definition adds to the reference."""
    return {
        site: _without(value, reference.get(site), defined.get(site))
        for site, value in candidate.items()
    }


def _without(value: Tensor, reference: Tensor | None, defined: Tensor | None) -> Tensor:
    if reference is None or defined is None or not value.shape == reference.shape == defined.shape:
        return value
    if is_text(value) or not (value.is_floating_point() and reference.is_floating_point()):
        same = value.dtype == reference.dtype == defined.dtype
        return reference if same and bool((value == defined).all()) else value
    return (value.double() - (defined.double() - reference.double())).to(value.dtype)
