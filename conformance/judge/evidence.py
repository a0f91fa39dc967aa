"""What is gathered about one cell on the way to its verdict."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from conformance.judge import floor, metrics
from conformance.judge.gain import Effect
from conformance.records import Judged, Relation, Site, Verdict

#: Fewer honest runs do not show how far honest runs can be apart.
FEWEST_MEMBERS = 4

TRUTH = "truth"
#: Observations under members of this name help to diagnose and are never judged.
AUXILIARY = "aux"


@dataclass(slots=True, eq=False)
class Reference:
    """The truth and the honest bf16 runs, by site."""

    truth: Mapping[Site, Tensor]
    honest: Mapping[Site, tuple[Tensor, ...]]
    _floors: dict[Site, floor.Floor] = field(default_factory=dict)

    def floor(self, site: Site) -> floor.Floor:
        """The noise floor of one observation; an edited run is scaled by its clean twin."""
        if site not in self._floors:
            clean = replace(site, run="clean")
            fallback = None
            twin = self.truth.get(clean) if site.run == "edited" else None
            if twin is not None and twin.shape == self.truth[site].shape:
                fallback = self.floor(clean).scale
            members = torch.stack([metrics.rows(member) for member in self.honest[site]])
            rows = metrics.rows(self.truth[site])
            centred = site.name == "logits"
            self._floors[site] = floor.floor(rows, members, fallback, centred=centred)
        return self._floors[site]


@dataclass(slots=True, eq=False)
class Evidence:
    """Everything known about a cell; filled from left to right, then concluded from."""

    reference: Reference
    observed: Mapping[Site, Tensor]
    twin: bool
    relations: list[Relation] = field(default_factory=list)
    judged: dict[Site, Judged] = field(default_factory=dict)
    rows: dict[Site, Tensor] = field(default_factory=dict)
    floors: dict[Site, floor.Floor] = field(default_factory=dict)
    effects: dict[Site, Effect] = field(default_factory=dict)

    def settle(self, site: Site, verdict: Verdict, message: str, **extra: float) -> None:
        """Record a verdict that needs no distance."""
        tensor = self.observed.get(site)
        shape = () if tensor is None else tuple(tensor.shape)
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        self.judged[site] = Judged(
            str(site), verdict, message, shape=shape, dtype=dtype, extra=extra
        )

    def open(self) -> list[Site]:
        """The observations of both sides that have no verdict yet."""
        return [site for site in self.reference.truth if site not in self.judged]


def read_reference(reference: Mapping[str, Mapping[str, Tensor]], *, twin: bool) -> Reference | str:
    """The reference by site, or what is wrong with it in words: then nothing can be judged."""
    truth = {Site.parse(name): tensor for name, tensor in reference.get(TRUTH, {}).items()}
    members = {
        name: {Site.parse(site): tensor for site, tensor in values.items()}
        for name, values in reference.items()
        if name != TRUTH and name.split("|")[0] != AUXILIARY
    }
    if not truth:
        return "it has no truth"
    if len(members) < FEWEST_MEMBERS:
        return f"it has {len(members)} honest bf16 runs, at least {FEWEST_MEMBERS} are needed"
    if twin and {site.run for site in truth} != {"clean", "edited"}:
        return "an intervention needs a clean and an edited run"
    for site, tensor in truth.items():
        if not tensor.numel():
            return f"the truth of {site} is empty"
        if not _finite(tensor):
            return f"the truth of {site} is not finite"
        for name, values in members.items():
            if site not in values:
                return f"{name} lacks {site}"
            if values[site].shape != tensor.shape:
                return f"{name} has {site} in shape {list(values[site].shape)}"
            if not _finite(values[site]):
                return f"{site} of {name} is not finite"
    honest = {site: tuple(values[site] for values in members.values()) for site in truth}
    return Reference(truth, honest)


def _finite(tensor: Tensor) -> bool:
    """A sum is not finite when one of its terms is not; float64 has room for all of bf16."""
    return math.isfinite(tensor.sum(dtype=torch.float64))
