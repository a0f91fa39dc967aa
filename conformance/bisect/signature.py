"""What makes two results of a cell the same: verdict, diagnosis and layout, no exit code (pure).

Numbers that are measured are left out, so that two honest runs have one signature.
"""

from __future__ import annotations

from collections.abc import Collection

from conformance.bisect.presentation.signature_parts import USUAL, Part
from conformance.bisect.search import Class
from conformance.diff.compare import cause_words
from conformance.records import CellResult, Group, Precision, Results, Verdict, record
from conformance.runner.pool import CANNOT_IMPORT

#: What a group says of itself, of which a layout is made.
_LAYOUT = ("layer_list", "model")


@record()
class Signature:
    """One cell's. `diagnosis` is empty where it passes; `layout` says how the layers' output
    holds the stream, where the list of layers is, and the class of the engine's model.
    `precision` is the one that decided: the same verdict in bf16 alone is another one.
    """

    cell: str
    verdict: Verdict
    diagnosis: str = ""
    layout: str = ""
    precision: Precision | None = None

    def part(self, part: Part) -> str:
        match part:
            case Part.VERDICT:
                return "pass" if self.verdict.passes else self._verdict()
            case Part.DIAGNOSIS:
                return self.diagnosis
            case Part.LAYOUT:
                return self.layout
            case Part.BITWISE:
                return str(self.verdict is Verdict.EXACT)

    def __str__(self) -> str:
        words = (self._verdict(), self.layout, self.diagnosis)
        return "; ".join(word for word in words if word)

    def _verdict(self) -> str:
        """`wrong in float32`; of one that passes, or was not gathered, the verdict alone."""
        names_precision = self.precision is not None and self.verdict.fails
        return (
            f"{self.verdict.value} in {self.precision}" if names_precision else self.verdict.value
        )


#: Of all cells that were selected, in the order of the plan.
Signatures = tuple[Signature, ...]


@record()
class Unusable:
    """A run that says nothing of what was tested. `harness`: a fault of ours."""

    reason: str
    harness: bool = False


def signatures(results: Results) -> Signatures | Unusable:
    """The selected cells' signatures, or why they have none."""
    # In bf16, where there is one: an engine that refuses float32 says nothing of itself in it.
    ordered = sorted(results.groups, key=lambda group: group.precision, reverse=True)
    groups = {(group.model, group.backend): group for group in ordered}
    signatures: list[Signature] = []
    for cell in results.cells:
        group = groups.get((cell.model, cell.backend))
        if group is not None and group.reason.startswith(CANNOT_IMPORT):
            return Unusable(group.reason)
        if cell.harness and cell.verdict.fails:
            return Unusable(f"{cell.id}: {cell.verdict.value}: {cell.reason}", harness=True)
        signatures.append(
            Signature(cell.id, cell.verdict, _diagnosis(cell), _layout(group), cell.precision)
        )
    return tuple(signatures)


def _diagnosis(cell: CellResult) -> str:
    return "" if cell.verdict.passes else cause_words(cell)


def _layout(group: Group | None) -> str:
    """`batched at model.layers of TransformersForCausalLM`; empty where no engine came up."""
    if group is None or not group.identity:
        return ""
    path, model = (str(group.identity.get(name, "")) for name in _LAYOUT)
    words = group.layout or "no layout"
    words += f" at {path}" if path else ""
    return words + (f" of {model}" if model else "")


def same(a: Signatures, b: Signatures, by: Collection[Part] = USUAL) -> bool:
    return _key(a, by) == _key(b, by)


def _key(signatures: Signatures, by: Collection[Part]) -> tuple[tuple[str, ...], ...]:
    return tuple((s.cell, *(s.part(part) for part in Part if part in by)) for s in signatures)


def classify(
    signatures: Signatures, good: Signatures, bad: Signatures, by: Collection[Part], neither: Class
) -> Class:
    """As at the good end, or as at the bad end; what `neither` says for any other."""
    if same(signatures, good, by):
        return Class.GOOD
    return Class.BAD if same(signatures, bad, by) else neither


def swapped(good: Signatures, bad: Signatures) -> bool:
    """Does the good end fail where the bad one passes, and nowhere the other way round?"""
    pairs = list(zip(good, bad, strict=True))
    worse = any(a.verdict.fails and b.verdict.passes for a, b in pairs)
    better = any(a.verdict.passes and not b.verdict.passes for a, b in pairs)
    return worse and not better
