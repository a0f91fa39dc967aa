"""Write docs/faults.md: what every fault does, where it acts, and which cell must show it.

`make docs` runs this module as a program.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from conformance.commands.selftest.fault import ALL, Fault
from conformance.commands.selftest.faults import FAULTS
from conformance.spec.records import Precision, Side

_INTRODUCTION = """\
<!-- Written by `make docs` from conformance/commands/selftest; change it there. -->
# The faults

What `conformance selftest` injects, one row a fault: what it does, at which hook point (the points
are explained in docs/selftest.md) and on which columns, and the cells that must show it, with one
of the verdicts in the last column. A fault is a record in a module of
`conformance/commands/selftest/faults/`, its sentence included.
Without a remark it is injected on `hf`, `vllm-pp1` and `vllm-pp2`, in float32.

Only bf16 can show {coarse} of the {count} faults: {names}.
"""

_HEADINGS: Mapping[str, str] = {
    "": "Must not be flagged",
    Side.NNSIGHT: "nnsight's: reading, writing, saving, tracing",
    Side.ENGINE: "The engine's: forward, weights, processes",
    Side.PIPELINE: "The pipeline's: what passes between stages",
    Side.UNDECIDED: "Nobody's for certain",
}
_HEAD = "| fault | what it does | at | must be shown by | as |\n| --- | --- | --- | --- | --- |"


def faults_page() -> str:
    """Return the page in Markdown: a table for each side that a fault belongs to."""
    by_heading: dict[str, list[Fault]] = {key: [] for key in _HEADINGS}
    for fault in FAULTS.values():
        by_heading["" if fault.silent else fault.side].append(fault)
    sections = [
        "\n".join([f"## {_HEADINGS[key]}", "", _HEAD, *map(_row, members)])
        for key, members in by_heading.items()
        if members
    ]
    names = [f"`{name}`" for name in only_bf16()]
    introduction = _INTRODUCTION.format(
        count=sum(not fault.silent for fault in FAULTS.values()),
        coarse=len(names),
        names=", ".join(names),
    )
    return "\n".join([introduction, "\n\n".join(sections), ""])


def only_bf16() -> list[str]:
    """Return the names of the faults that float32 cannot show."""
    return [
        fault.id
        for fault in FAULTS.values()
        if fault.precision is Precision.BF16 and not fault.silent
    ]


def _row(fault: Fault) -> str:
    met = f" Met in {fault.met}." if fault.met else ""
    cells = (
        f"`{fault.id}`",
        fault.summary + met,
        ", ".join([f"{fault.point}", *_where(fault)]),
        ", ".join(f"`{case}`" for case in fault.cases),
        ", ".join(f"`{verdict}`" for verdict in sorted(fault.verdicts)),
    )
    return f"| {' | '.join(cells)} |"


def _where(fault: Fault) -> list[str]:
    """Return the restrictions of a fault: layers, columns, models, precision."""
    places = "/".join(place for place in fault.places if place)
    columns = "" if fault.backends == ALL else f"on {' and '.join(fault.backends)}"
    models = (*fault.architectures, *(f"models with {part}" for part in fault.parts))
    precision = "in bf16" if fault.precision is Precision.BF16 else ""
    return [words for words in (places, columns, " and ".join(models), precision) if words]


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(faults_page(), encoding="utf-8")
