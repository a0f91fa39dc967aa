"""The evidence about one cell, collected before its verdict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from conformance.judge.diagnosis.predictions import Explanation
from conformance.judge.measures.floor import Floor
from conformance.judge.measures.gain import Effect
from conformance.judge.reference import ReferenceRuns
from conformance.records import Judged, Relation, Site, Verdict

#: Verdicts on observations that no number can be read from.
_MISFITS = (Verdict.STRUCTURE, Verdict.DTYPE)


@dataclass(slots=True, eq=False)
class Evidence:
    """All evidence about a cell; the fields are filled from top to bottom."""

    reference: ReferenceRuns
    observed: Mapping[Site, Tensor]
    has_edit: bool
    relations: list[Relation] = field(default_factory=list)
    judged: dict[Site, Judged] = field(default_factory=dict)
    rows: dict[Site, Tensor] = field(default_factory=dict)
    floors: dict[Site, Floor] = field(default_factory=dict)
    effects: dict[Site, Effect] = field(default_factory=dict)
    explained: dict[Site, tuple[Explanation, ...]] = field(default_factory=dict)

    def settle(self, site: Site, verdict: Verdict, message: str, **extra: float) -> None:
        """Record a verdict that needs no distance."""
        tensor = self.observed.get(site)
        shape = () if tensor is None else tuple(tensor.shape)
        dtype = "" if tensor is None else str(tensor.dtype).removeprefix("torch.")
        self.judged[site] = Judged(
            str(site), verdict, message, shape=shape, dtype=dtype, extra=extra
        )

    def comparable(self) -> dict[Site, Tensor]:
        """Return the observations whose shape and dtype are allowed."""
        return {
            site: tensor
            for site, tensor in self.observed.items()
            if site not in self.judged or self.judged[site].verdict not in _MISFITS
        }

    def open(self) -> list[Site]:
        """Return the sites of the reference that have no verdict yet."""
        return [site for site in self.reference.reference_values if site not in self.judged]
