"""What of a cell's signature counts."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """`bitwise` tells `exact` from `match`; both pass."""

    VERDICT = "verdict"
    DIAGNOSIS = "diagnosis"
    LAYOUT = "layout"
    BITWISE = "bitwise"


#: What counts where nothing else is asked for.
USUAL = (Part.VERDICT, Part.DIAGNOSIS, Part.LAYOUT)
