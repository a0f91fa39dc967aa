"""Rows that rounding may route to another expert: docs/numerics.md#ties-of-routers.

A router can score two experts within one rounding of each other, also in float32: about one token
in ten thousand. Which expert a correct computation picks is then chance. The token's own row and
later rows that depend on it follow one expert or the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.records import Site


def following(site: Site, rows: int, ties: Mapping[Site, Tensor]) -> Tensor:
    """Return which rows of an observation may come from another expert: bool [rows].

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
