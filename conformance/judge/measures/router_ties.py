"""Rows that may be another expert's, which rounding chose: docs/numerics.md#ties-of-routers.

A router may have two experts within a rounding of each other, in float32 too: of ten thousand
tokens one has. Which of them an honest computation gives such a token is chance, and what follows
from it, the token's own row and later ones, is that of one expert or of the other.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from conformance.records import Site


def following(site: Site, rows: int, ties: Mapping[Site, Tensor]) -> Tensor:
    """bool [rows]: which of an observation's rows may be another expert's. `ties` are the tied
    tokens [tokens] after each layer.

    In the layer itself the token's own row; in later layers, the logits among them, all rows from
    the token on, as attention hands it on; in later steps all. Where an observation has other rows
    than tokens, any of them may be.
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
