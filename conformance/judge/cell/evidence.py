"""The evidence about one cell, collected before its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from conformance.judge.cell.diagnosis.hypotheses import Hypothesis, NoisyRows, Scene
from conformance.judge.cell.measures import metrics, structure
from conformance.judge.cell.measures.floor import Floor
from conformance.judge.cell.measures.gain import Effect
from conformance.judge.cell.reference import ReferenceRuns
from conformance.spec.records import Judged, Limits, Relation, Site, Verdict


@dataclass(slots=True, eq=False)
class Evidence:
    """All evidence about a cell; the fields are filled from top to bottom."""

    reference: ReferenceRuns
    observed: Mapping[Site, Tensor]
    has_edit: bool
    limits: Limits
    relations: list[Relation] = field(default_factory=list)
    judged: dict[Site, Judged] = field(default_factory=dict)
    rows: dict[Site, Tensor] = field(default_factory=dict)
    floors: dict[Site, Floor] = field(default_factory=dict)
    effects: dict[Site, Effect] = field(default_factory=dict)
    explained: dict[Site, tuple[Hypothesis, ...]] = field(default_factory=dict)

    def settle(self, site: Site, verdict: Verdict, message: str, **extra: float) -> None:
        """Record a verdict that needs no distance."""
        tensor = self.observed.get(site)
        shape = () if tensor is None else tuple(tensor.shape)
        dtype = "" if tensor is None else structure.short(tensor.dtype)
        self.judged[site] = Judged(
            str(site), verdict, message, shape=shape, dtype=dtype, extra=extra
        )

    def comparable(self) -> dict[Site, Tensor]:
        """Return the observations whose shape and dtype are allowed."""
        misfits = (Verdict.STRUCTURE, Verdict.DTYPE)
        return {
            site: tensor
            for site, tensor in self.observed.items()
            if site not in self.judged or self.judged[site].verdict not in misfits
        }

    def open(self) -> list[Site]:
        """Return the sites of the reference that have no verdict yet."""
        return [site for site in self.reference.reference_values if site not in self.judged]

    def scene_of_value(self, site: Site) -> Scene:
        """Return an observation together with every value of the reference."""
        reference = self.reference
        auxiliary = {aux: metrics.rows(tensor) for aux, tensor in reference.auxiliary.items()}
        if site.name == "logits":
            auxiliary[site] = metrics.rows(reference.reference_values[site])
        rows = reference.floor(site).view(self.rows[site])
        return Scene(site, rows, reference.known(), auxiliary)

    def scene_of_change(self, site: Site) -> Scene:
        """Return the change that the write made, together with every change in the reference."""
        changes = {}
        for edited in self.effects:
            before = self.reference.floor(replace(edited, run="clean"))
            after = self.reference.floor(edited)
            change = (after.reference - before.reference) * before.bulk
            changes[edited] = NoisyRows(change, torch.hypot(after.noise, before.noise))
        clean = replace(site, run="clean")
        floor = self.reference.floor(clean)
        change = floor.view(self.rows[site] - self.rows[clean]) * floor.bulk
        return Scene(site, change, changes, {})
