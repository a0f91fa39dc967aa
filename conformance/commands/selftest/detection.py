"""Compare which faults the default tier and the full tier detect, from a stored self-test.

A self-test injects each fault into cells that must show it, and its rows list the cells that did. A
tier detects a fault on a model if the tier selects one of these cells; for a fault of bf16, if that
cell runs in bf16. No cell runs again for this.

    python -m conformance.commands.selftest.detection reports/RUN docs/selftest.md

writes the table between the two marks of the document.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from conformance.commands.selftest.faults import FAULTS
from conformance.errors import ConformanceError
from conformance.runner.planning.selection import FULL, Choice, Selected, select
from conformance.runner.store.files import read_record
from conformance.spec.records import Cell, Precision
from conformance.spec.records.injected import FILE, Ending, Row, SelfTest

#: The share of the full tier's detected faults that the default tier must also detect.
BAR = 0.99
#: Faults by which the cells that run in bf16 were chosen. The bar applies to all others.
CHOSEN_BY = ("pp-dtype", "runner-up-bf16")

BEGIN = "<!-- detection: written by `python -m conformance.commands.selftest.detection` -->"
END = "<!-- /detection -->"


@dataclass(frozen=True)
class Detected:
    """For one model: by how many cells of each tier a fault is detected, where by any."""

    model: str
    full: Mapping[str, int]
    default: Mapping[str, int]

    @property
    def missed(self) -> list[str]:
        return sorted(self.full.keys() - self.default.keys())


def twice(tier: Mapping[str, int]) -> set[str]:
    """Return the faults that two cells or more detect."""
    return {name for name, cells in tier.items() if cells > 1}


def detected(rows: Iterable[Row], full: Selected, default: Selected) -> list[Detected]:
    """Return what each tier detects, by model, in the order of the rows. Faults that must not be
    flagged are ignored.
    """
    caught: dict[str, dict[str, set[Cell]]] = {}
    for row in rows:
        if row.ending is Ending.CAUGHT:
            cell = Cell(row.model, row.backend, row.scenario, row.case)
            caught.setdefault(row.model, {}).setdefault(row.fault, set()).add(cell)

    def seen(by_fault: Mapping[str, set[Cell]], tier: Selected) -> dict[str, int]:
        """Return the number of cells of a tier that show each fault."""
        counts = {}
        for name, cells in by_fault.items():
            coarse = name in FAULTS and FAULTS[name].precision is Precision.BF16
            own = (cells & set(tier.cells)) - (tier.float32_only if coarse else frozenset())
            if own:
                counts[name] = len(own)
        return counts

    return [
        Detected(model, seen(by_fault, full), seen(by_fault, default))
        for model, by_fault in caught.items()
    ]


def share(found: Sequence[Detected], without: Iterable[str] = CHOSEN_BY) -> float:
    """Return the share of the full tier's detections (pairs of fault and model) that the default
    tier also makes, ignoring the faults in `without`.
    """
    left = frozenset(without)
    full = sum(len(one.full.keys() - left) for one in found)
    missed = sum(len(set(one.missed) - left) for one in found)
    return (full - missed) / full if full else 0.0


def table(found: Sequence[Detected], kinds: Iterable[str], run: str) -> str:
    """Return the table in Markdown, with the models that stand for a kind of layer first."""
    of_kinds = [one for one in found if one.model in set(kinds)]
    others = [one for one in found if one not in of_kinds]
    chosen_by = " and ".join(f"`{name}`" for name in CHOSEN_BY)
    about = (
        f"From the stored self-test {run}. Of the faults that a cell of the full tier caught on a "
        "model, those that a cell of the default tier caught:"
    )
    outcome = (
        f"On the models that stand for a kind of layer the default tier detects "
        f"{share(of_kinds):.1%} (bar: {BAR:.0%}), not counting {chosen_by}, by which cells were "
        "chosen."
    )
    head = (
        "| model | full tier | default tier | twice or more: full, default | missed |",
        "| --- | --- | --- | --- | --- |",
    )
    body = [
        f"| {one.model} | {len(one.full)} | {len(one.full) - len(one.missed)} "
        f"| {len(twice(one.full))}, {len(twice(one.default))} "
        f"| {', '.join(f'`{name}`' for name in one.missed) or 'none'} |"
        for one in (*of_kinds, *others)
    ]
    return "\n".join([about, "", *head, *body, "", outcome])


def kinds_of(choice: Choice) -> list[str]:
    """Return the models that stand for a kind of layer in the default tier."""
    from conformance.runner.planning.selection import DEFAULT
    from conformance.spec.inputs import manifest

    known = manifest.load(choice.manifest)
    tier = known.tiers.get(DEFAULT, manifest.Tier())
    return [model.id for model in known.models if tier.kinds in model.tiers]


def main(folder: Path, document: Path) -> None:
    """Write the table of a stored self-test into a document, between the two marks."""
    stored = read_record(SelfTest, folder / FILE)
    if stored is None:
        raise ConformanceError("holds no self-test", path=folder, remedy="conformance selftest")
    found = detected(stored.rows, select(Choice(tier=FULL)), select(Choice()))
    text = document.read_text(encoding="utf-8")
    before, mark, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (mark and end):
        raise ConformanceError("has no place for the table", path=document, remedy=BEGIN + END)
    made = table(found, kinds_of(Choice()), folder.name)
    document.write_text(f"{before}{BEGIN}\n{made}\n{END}{after}", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
