"""Rows that no write can have reached, and rows that may come from another expert.

A row depends on its own and earlier tokens, its own and earlier layers, and earlier steps. A row
that a write reached may keep the same bits in every baseline run (a norm ignores a factor of two),
while another kernel rounds it differently. So an unchanged row alone proves nothing. The residual
stream does, since it contains everything written before: if a stream at the same place or later is
bitwise unchanged, in this row and all earlier ones, nothing reached them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.judge.cell.measures.floor import Floor
from conformance.spec.records import Site

#: Observations of the residual stream, and their position relative to the end of their layer.
_STREAMS = {"stream": 0.0, "input": -0.5}

#: The noise floors of an observation in the clean run and in the edited run.
Floors = tuple[Floor, Floor]


def unreached(floors_by_site: Mapping[Site, Floors]) -> dict[Site, Tensor]:
    """Return for each observation the rows that no write can have reached: bool [rows]."""
    # Bitwise unchanged in the reference and in every baseline run.
    still = {
        site: (before.reference == after.reference).all(dim=-1)
        & (before.baseline == after.baseline).all(dim=-1).all(dim=0)
        for site, (before, after) in floors_by_site.items()
    }
    proved: dict[Site, Tensor] = {}
    for prompt in {site.prompt for site in still}:
        own = {site: rows for site, rows in still.items() if site.prompt == prompt}
        first = min((site.step for site, rows in own.items() if not rows.all()), default=None)
        for site, rows in own.items():
            if first is None or site.step < first:
                proved[site] = rows
            elif site.step > first:
                proved[site] = torch.zeros_like(rows)
            else:
                proved[site] = _proved(site, own)
    return proved


def _proved(site: Site, own: Mapping[Site, Tensor]) -> Tensor:
    """Return the rows up to which a stream at this place or later has not changed."""
    rows = own[site]
    # The layer whose end is the latest point that the observation can depend on.
    latest = math.inf if site.layer is None else site.layer
    proofs = [
        stream_rows.cumprod(dim=0).bool()
        for stream, stream_rows in own.items()
        if stream.name in _STREAMS
        and stream.layer is not None
        and stream.step == site.step
        and len(stream_rows) == len(rows)
        and (stream == site or stream.layer + _STREAMS[stream.name] >= latest)
    ]
    proved = torch.stack(proofs).any(dim=0) if proofs else torch.zeros_like(rows)
    return proved & rows


def follow_ties(site: Site, rows: int, ties: Mapping[Site, Tensor]) -> Tensor:
    """Return which rows of an observation may come from another expert: bool [rows].

    A router can score two experts within one rounding of each other, also in float32: about one
    token in ten thousand. Which of them a correct computation picks is chance
    (docs/numerics.md#ties-of-routers).

    `ties` maps each layer to its tied tokens [tokens]. In that layer only the token's own row is
    affected. In later layers and the logits, attention spreads it to all rows from the token on; in
    later steps to all rows. If the rows are not tokens, all may be affected.
    """
    found = torch.zeros(rows, dtype=torch.bool)
    for tie, tokens in ties.items():
        if (tie.run, tie.prompt) != (site.run, site.prompt) or tie.step > site.step:
            continue
        here = tie.step == site.step
        if here and site.layer is not None and site.layer < (tie.layer or 0):
            continue
        if here and rows == len(tokens):
            own = tokens.bool()
            found |= own if site.layer == tie.layer else own.cumsum(0) > 0
        else:
            found |= True
    return found
