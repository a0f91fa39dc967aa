"""The parts of a cell's signature that a bisect compares."""

from __future__ import annotations

from enum import StrEnum


class SignaturePart(StrEnum):
    """A part of a signature. `bitwise` distinguishes `exact` from `match`; both pass."""

    VERDICT = "verdict"
    DIAGNOSIS = "diagnosis"
    LAYOUT = "layout"
    BITWISE = "bitwise"


#: The parts that count by default.
USUAL = (SignaturePart.VERDICT, SignaturePart.DIAGNOSIS, SignaturePart.LAYOUT)
