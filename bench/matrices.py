"""The default matrix under other threads, instruction sets and kernels: is it clean under each?

    python bench/matrices.py [--only NAME ...] [--reports FOLDER] [-- ARGUMENT ...]
    python bench/matrices.py --stored RUN ...

Runs `conformance run` once under each set of conditions, whose observations are kept apart, and
prints a line for each: cells, what was not expected, and how far the furthest float32 observation
of a cell that passes is from the reference, in floors and as a share of its limit. Arguments behind
`--` are for `run`. Ends with 1 where a cell was not expected, or a run had none.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from conformance.runner.store import open_run
from conformance.spec.records import Finding, Verdict
from conformance.spec.records.judged import FLOAT32_LIMITS

ROOT = Path(__file__).resolve().parents[1]

#: A worker has one thread unless it is told otherwise.
CONDITIONS: Mapping[str, Mapping[str, str]] = {
    "as it is": {},
    "1 thread, no vectors": {"ATEN_CPU_CAPABILITY": "default"},
    "2 threads": {"OMP_NUM_THREADS": "2"},
    "4 threads, AVX2": {"OMP_NUM_THREADS": "4", "ATEN_CPU_CAPABILITY": "avx2"},
    "without oneDNN": {"PYTHONPATH": str(ROOT / "bench" / "without_onednn")},
}


@dataclass(frozen=True)
class Matrix:
    """What one run came to. `furthest` is in floors, `share` of the limit, both of float32."""

    name: str
    cells: int
    findings: Mapping[Finding, int]
    furthest: float
    share: float
    where: str
    seconds: float = 0.0

    @property
    def unexpected(self) -> int:
        return sum(number for finding, number in self.findings.items() if not finding.fine)


def main(
    arguments: Annotated[list[str] | None, typer.Argument(help="For `run`.")] = None,
    only: Annotated[list[str] | None, typer.Option(help=", ".join(CONDITIONS))] = None,
    reports: Annotated[Path | None, typer.Option(help="Keep the runs here.")] = None,
    stored: Annotated[list[Path] | None, typer.Option(help="Runs that are there.")] = None,
) -> None:
    """Run the matrix under each set of conditions, and say how clean it is."""
    found = [read(run, run.name) for run in stored or ()] or list(
        gathered(arguments, only, reports)
    )
    show(found)
    if not found or any(matrix.unexpected or not matrix.cells for matrix in found):
        raise typer.Exit(1)


def gathered(
    arguments: list[str] | None, only: list[str] | None, reports: Path | None
) -> Iterator[Matrix]:
    """One run after another; a line is printed as each ends."""
    for name in only or CONDITIONS:
        if name not in CONDITIONS:
            raise typer.BadParameter(f"{name!r} is none of {', '.join(CONDITIONS)}")
        with tempfile.TemporaryDirectory(prefix="matrix-") as temporary:
            folder = (reports or Path(temporary)) / name.replace(" ", "-").replace(",", "")
            begun = time.monotonic()
            ran = subprocess.run(
                [
                    sys.executable,
                    "-m",
                    "conformance",
                    "run",
                    "--reports",
                    folder,
                    *(arguments or ()),
                ],
                cwd=ROOT,
                env={**os.environ, **CONDITIONS[name]},
                check=False,
            )
            seconds = time.monotonic() - begun
            if ran.returncode not in (0, 1):
                raise typer.Exit(ran.returncode)
            matrix = read(folder / "latest", name, seconds)
            print(f"{name}: {matrix.cells} cells, {matrix.unexpected} unexpected", flush=True)
            yield matrix


def read(folder: Path, name: str, seconds: float = 0.0) -> Matrix:
    """What a run that was judged came to."""
    results = open_run(folder.parent, folder.name).results()
    limits, furthest = FLOAT32_LIMITS, (0.0, 0.0, "")
    for cell in results.cells:
        if cell.verdict in (Verdict.MATCH, Verdict.EXACT) and cell.precision == "float32":
            for each in cell.observations:
                worst, middle = each.q_max or 0.0, each.q_med or 0.0
                share = max(worst / limits.k_max, middle / limits.k_med)
                furthest = max(furthest, (share, worst, f"{cell.id}, {each.site}"))
    findings = Counter(cell.finding for cell in results.cells if cell.finding is not None)
    share, floors, where = furthest
    return Matrix(name, len(results.cells), findings, floors, share, where, seconds)


def show(matrices: list[Matrix]) -> None:
    """A line for each, and their sum."""
    titles = ("conditions", "cells", "unexpected", "known", "numerics", "furthest", "of its limit")
    table = Table(*titles, "where", "s")
    for matrix in matrices:
        known, numerics = (
            matrix.findings.get(each, 0) for each in (Finding.KNOWN, Finding.NUMERICS)
        )
        table.add_row(
            *(matrix.name, str(matrix.cells), str(matrix.unexpected), str(known), str(numerics)),
            *(
                f"{matrix.furthest:.2f}",
                f"{matrix.share:.1%}",
                escape(matrix.where),
                f"{matrix.seconds:.0f}",
            ),
        )
    cells = sum(matrix.cells for matrix in matrices)
    unexpected = sum(matrix.unexpected for matrix in matrices)
    table.add_row("all", str(cells), str(unexpected))
    Console(width=200).print(table)


if __name__ == "__main__":
    typer.run(main)
