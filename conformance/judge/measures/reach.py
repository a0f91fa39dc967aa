"""Which rows no write can have reached, by what the truth and the honest runs show.

A row depends on what comes before it: its own and earlier tokens, its own and earlier layers, the
steps before. A row that a write reached may still show the same bits in every honest run (a norm
is blind to a factor of two), and another kernel rounds it in another way. So that no bit of a row
changes proves nothing by itself. What proves it is the residual stream, which has in it all that
was written before: where a stream observed at the same place or later is unchanged to the last
bit, in this row and all earlier ones, nothing reached them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.judge.measures.floor import Floor
from conformance.records import Site

#: Observations of the residual stream, and where they are made from the end of their layer on.
_STREAMS = {"stream": 0.0, "input": -0.5}

#: The floors of an observation in the clean run and in the edited one.
Floors = tuple[Floor, Floor]


def unreached(twins: Mapping[Site, Floors]) -> dict[Site, Tensor]:
    """For each observation bool [rows]: the rows that no write can have reached."""
    still = {site: _still(*floors) for site, floors in twins.items()}
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


def _still(before: Floor, after: Floor) -> Tensor:
    """Rows of which neither the truth nor an honest run changes a bit."""
    truth = (before.truth == after.truth).all(dim=-1)
    return truth & (before.members == after.members).all(dim=-1).all(dim=0)


def _proved(site: Site, own: Mapping[Site, Tensor]) -> Tensor:
    """The rows up to which a stream that is observed there or later has not changed."""
    rows = own[site]
    proofs = [
        stream_rows.cumprod(dim=0).bool()
        for stream, stream_rows in own.items()
        if stream.name in _STREAMS
        and stream.layer is not None
        and stream.step == site.step
        and len(stream_rows) == len(rows)
        and (stream == site or stream.layer + _STREAMS[stream.name] >= _before(site))
    ]
    proved = torch.stack(proofs).any(dim=0) if proofs else torch.zeros_like(rows)
    return proved & rows


def _before(site: Site) -> float:
    """The layer by whose end all that an observation can depend on is done."""
    return math.inf if site.layer is None else site.layer
