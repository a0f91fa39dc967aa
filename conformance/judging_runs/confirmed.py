"""References that a second implementation confirmed in an earlier run.

`confirmed.json` has an entry for each model that vLLM's own definition confirmed by the reference's
log-probabilities in float32: the definition and some of these numbers. If today's reference has the
same numbers, it is confirmed too, and an engine that differs from it by itself deviates, even in a
run without a correct column. `scripts/confirmations.py RUN` writes the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path

import torch
from torch import Tensor

from conformance.errors import ConformanceError
from conformance.records import FLOAT32_LIMITS, Model, from_json, record

FILE = Path(__file__).with_name("confirmed.json")
#: How many numbers of each row of log-probabilities are kept.
_KEPT = 16


@record()
class Confirmed:
    """Part of a reference, by site, that vLLM's class `definition` confirmed.

    `distance` and `floor` are those of `conformance.records.Confirmation`.
    """

    model: str
    architecture: str
    definition: str
    versions: Mapping[str, str]
    distance: float
    floor: float
    truth: Mapping[str, tuple[float, ...]]


@record()
class Ledger:
    entries: tuple[Confirmed, ...]


def excerpt(rows: Mapping[str, Tensor]) -> dict[str, tuple[float, ...]]:
    """Return evenly spaced numbers of each row."""
    return {site: tuple(_spread(row).tolist()) for site, row in sorted(rows.items())}


def _spread(row: Tensor) -> Tensor:
    flat = row.flatten().double()
    return flat[torch.linspace(0, len(flat) - 1, _KEPT).long()]


@cache
def ledger(path: Path = FILE) -> Mapping[str, Confirmed]:
    """Load the entries by model. Raises ConformanceError if the file is damaged."""
    try:
        known = from_json(Ledger, path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConformanceError(f"damaged: {error}", path=path) from error
    return {entry.model: entry for entry in known.entries}


def remembered(model: Model, reference: Mapping[str, Tensor]) -> str:
    """Return who confirmed this reference in an earlier run, "" if nobody did."""
    entry = ledger().get(model.id)
    if entry is None or entry.architecture != model.architecture or not entry.truth:
        return ""
    if not entry.truth.keys() <= reference.keys():
        return ""
    limit = FLOAT32_LIMITS.k_max * entry.floor
    if any(_distance(reference[site], known) > limit for site, known in entry.truth.items()):
        return ""
    by = ", ".join(f"{name} {version}" for name, version in entry.versions.items())
    return (
        f"an earlier run confirmed this reference ({entry.definition} with {by}, "
        f"{entry.distance:.1e} from it)"
    )


def _distance(row: Tensor, known: tuple[float, ...]) -> float:
    """Return the distance relative to the row's spread around its mean."""
    then, now = torch.tensor(known, dtype=torch.float64), _spread(row)
    return float((now - then).norm() / (then - then.mean()).norm().clamp_min(1e-30))
