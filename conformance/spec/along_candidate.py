"""The case that the reference runs along a candidate's tokens and experts.

After another token, later steps cannot be compared; after another expert, which rounding may choose
where a router's scores are tied, later rows cannot. So the reference runs again along the
candidate's own choices.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from conformance.spec.generated_tokens import continuation, differing
from conformance.spec.records import TIED, Case, Precision, Site

if TYPE_CHECKING:  # a worker whose engine needs no torch imports the records only
    from torch import Tensor

#: A row of a mixture that is further from the reference, by its own size, may have other experts:
#: a hundred roundings of float32.
SUSPECT = 1e-5


def case_along(
    case: Case,
    observed: Mapping[str, Tensor],
    members: Mapping[str, Mapping[str, Tensor]],
    precision: Precision,
    path: Path | None = None,
) -> Case:
    """Return the case along what a candidate `observed` and stored at `path`; the case itself if it
    chose as the reference did. `members` are the reference's observations.

    In bf16 experts are not followed: rounding changes too many of them.
    """
    reference = members.get("truth", {})
    prompts = len(case.prompts)
    along = replace(
        case, forced=differing(continuation(observed, prompts), continuation(reference, prompts))
    )
    tied = any(Site.parse(name).name == TIED for name in members.get("aux", ()))
    if precision is not Precision.FLOAT32 or not tied:
        return along
    if not along.forced and first_off(observed, reference, SUSPECT) is None:
        return along
    return replace(along, observed=str(path or ""), along=_digest(observed))


class OffRow(NamedTuple):
    """A row that is off."""

    site: Site
    row: int

    @property
    def order(self) -> tuple[str, int, int, float, str, int]:
        """Return the place in the order of computation: smaller is earlier."""
        return (*_order(self.site), self.row)

    def of(self, values: Mapping[str, Tensor]) -> Tensor:
        """Return this row among observations of the same shape."""
        value = values[str(self.site)]
        return value.reshape(-1, value.shape[-1])[self.row] if value.ndim else value


def first_off(
    observed: Mapping[str, Tensor], reference: Mapping[str, Tensor], allowed: float
) -> OffRow | None:
    """Return the first row whose distance from the reference, by the row's size, is larger than
    `allowed`; None if there is none.
    """
    for site in sorted(map(Site.parse, reference), key=_order):
        value, known = observed.get(str(site)), reference[str(site)]
        if value is None or value.shape != known.shape or not known.is_floating_point():
            continue
        for row, distance in enumerate(_distances(value, known)):
            if distance > allowed:
                return OffRow(site, row)
    return None


def _distances(value: Tensor, reference: Tensor) -> list[float]:
    """Return the distance of each row from the reference's, by its size; infinity for nan."""
    width = reference.shape[-1] if reference.ndim else 1
    value, reference = (each.double().reshape(-1, max(1, width)) for each in (value, reference))
    off = (value - reference).norm(dim=-1) / reference.norm(dim=-1).clamp_min(1e-30)
    found: list[float] = off.nan_to_num(nan=math.inf).tolist()
    return found


def layer_of(site: Site) -> float:
    """Return the layer; what belongs to none follows all layers."""
    return math.inf if site.layer is None else site.layer


def _order(site: Site) -> tuple[str, int, int, float, str]:
    return (site.run, site.prompt, site.step, layer_of(site), site.name)


def _digest(values: Mapping[str, Tensor]) -> str:
    hashed = hashlib.sha256()
    for name, value in sorted(values.items()):
        hashed.update(f"{name} {value.dtype} {list(value.shape)}".encode())
        number = value.float() if value.is_floating_point() else value
        hashed.update(number.contiguous().numpy().tobytes())
    return hashed.hexdigest()[:12]
