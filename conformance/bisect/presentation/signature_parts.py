"""The parts of a cell's signature that a bisect compares."""

from __future__ import annotations

from enum import StrEnum


class Part(StrEnum):
    """A part of a signature. `bitwise` distinguishes `exact` from `match`; both pass."""

    VERDICT = "verdict"
    DIAGNOSIS = "diagnosis"
    LAYOUT = "layout"
    BITWISE = "bitwise"


#: The parts that count by default.
USUAL = (Part.VERDICT, Part.DIAGNOSIS, Part.LAYOUT)
