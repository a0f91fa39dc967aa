"""Compare two results of a cell by verdict, diagnosis and layout, ignoring exit codes (pure).

Measured numbers are left out, so that repeated runs have the same signature.
"""

from __future__ import annotations

from collections.abc import Collection

from conformance.commands.bisect.halving import USUAL, Class, SignaturePart
from conformance.spec.records import Precision, Verdict, record


@record()
class Signature:
    """The signature of one cell. `diagnosis` is empty if the cell passes. `layout` says how the
    layers' output holds the stream, where the list of layers is, and the class of the engine's
    model. `precision` is the deciding one: a failure in bf16 differs from a failure in float32.
    """

    cell: str
    verdict: Verdict
    diagnosis: str = ""
    layout: str = ""
    precision: Precision | None = None

    def part(self, part: SignaturePart) -> str:
        match part:
            case SignaturePart.VERDICT:
                return "pass" if self.verdict.passes else self._verdict()
            case SignaturePart.DIAGNOSIS:
                return self.diagnosis
            case SignaturePart.LAYOUT:
                return self.layout
            case SignaturePart.BITWISE:
                return str(self.verdict is Verdict.EXACT)

    def __str__(self) -> str:
        return "; ".join(filter(None, (self._verdict(), self.layout, self.diagnosis)))

    def _verdict(self) -> str:
        """Return `wrong in float32`; without a precision if the cell passes or was not gathered."""
        named = self.precision is not None and self.verdict.fails
        return f"{self.verdict.value} in {self.precision}" if named else self.verdict.value


#: The signatures of all selected cells, in the order of the plan.
Signatures = tuple[Signature, ...]


def is_same(a: Signatures, b: Signatures, by: Collection[SignaturePart] = USUAL) -> bool:
    """Return whether all cells are the same in these parts."""
    first, second = (
        [(each.cell, *(each.part(part) for part in SignaturePart if part in by)) for each in side]
        for side in (a, b)
    )
    return first == second


def classify(
    signatures: Signatures,
    good: Signatures,
    bad: Signatures,
    by: Collection[SignaturePart],
    neither: Class,
) -> Class:
    """Return GOOD or BAD if the signatures match that end, else `neither`."""
    if is_same(signatures, good, by):
        return Class.GOOD
    return Class.BAD if is_same(signatures, bad, by) else neither


def are_swapped(good: Signatures, bad: Signatures) -> bool:
    """Return whether the good end fails where the bad one passes, and never the reverse."""
    pairs = list(zip(good, bad, strict=True))
    worse = any(a.verdict.fails and b.verdict.passes for a, b in pairs)
    better = any(a.verdict.passes and not b.verdict.passes for a, b in pairs)
    return worse and not better
