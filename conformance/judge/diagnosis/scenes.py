"""What a failed observation is compared with to find out what it holds."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from conformance.judge.diagnosis.predictions import NoisyRows, Scene
from conformance.judge.evidence import Evidence
from conformance.judge.measures import metrics
from conformance.records import Site


def value(evidence: Evidence, site: Site) -> Scene:
    """Return the observation together with every value of the reference."""
    reference = evidence.reference
    auxiliary = {aux_site: metrics.rows(tensor) for aux_site, tensor in reference.auxiliary.items()}
    if site.name == "logits":
        auxiliary[site] = metrics.rows(reference.reference_values[site])
    rows = reference.floor(site).view(evidence.rows[site])
    return Scene(site, rows, reference.known(), auxiliary)


def change(evidence: Evidence, site: Site) -> Scene:
    """Return the change that the write made, together with every change in the reference."""
    changes = {}
    for edited in evidence.effects:
        before, after = (
            evidence.reference.floor(one) for one in (replace(edited, run="clean"), edited)
        )
        changes[edited] = NoisyRows(
            (after.reference - before.reference) * before.bulk,
            torch.hypot(after.noise, before.noise),
        )
    return Scene(site, _change_of(evidence, site), changes, {})


def _change_of(evidence: Evidence, site: Site) -> Tensor:
    clean = replace(site, run="clean")
    noise_floor = evidence.reference.floor(clean)
    return noise_floor.view(evidence.rows[site] - evidence.rows[clean]) * noise_floor.bulk
