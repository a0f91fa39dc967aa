"""The matrix as a table with one row per cell, for spreadsheets and notebooks."""

from __future__ import annotations

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any

from conformance.records import Gain, Results
from conformance.report.verdict_styles import family

CSV = "results.csv"
PARQUET = "results.parquet"

COLUMNS = (
    "id",
    "model",
    "architecture",
    "backend",
    "scenario",
    "case",
    "verdict",
    "family",
    "reason",
    "diagnosis",
    "attribution",
    "evidence",
    "expected",
    "harness",
    "worst_ratio",
    "worst_site",
    "gain",
    "gain_sigma",
    "observations",
    "seconds",
    "command",
)


#: The float columns; the others are strings, except the bool `harness` and int `observations`.
_NUMBERS = ("worst_ratio", "gain", "gain_sigma", "seconds")


def rows(results: Results) -> list[dict[str, Any]]:
    """Return every cell in the order of the run. `gain` is the one furthest from 1."""
    table = []
    for cell in results.cells:
        gains = [
            observation.gain for observation in cell.observations if observation.gain is not None
        ]
        gain: Gain | None = max(gains, key=lambda g: abs(g.g - 1), default=None)
        table.append(
            {name: getattr(cell, name, None) for name in COLUMNS}
            | {
                "verdict": cell.verdict.value,
                "attribution": cell.attribution.side.value if cell.attribution else "",
                "evidence": cell.attribution.evidence if cell.attribution else "",
                "family": family(cell.verdict).value,
                "gain": gain.g if gain else None,
                "gain_sigma": gain.sigma if gain else None,
                "observations": len(cell.observations),
            }
        )
    return table


def write(results: Results, folder: Path) -> tuple[Path, ...]:
    """Write `results.csv` and `results.parquet`."""
    return write_csv(results, folder), write_parquet(results, folder)


def write_csv(results: Results, folder: Path) -> Path:
    """Write `results.csv` into the folder atomically."""

    def write(part: Path) -> None:
        with part.open("w", encoding="utf-8", newline="") as file:
            table = csv.DictWriter(file, COLUMNS, lineterminator="\n")
            table.writeheader()
            table.writerows(rows(results))

    return _put(folder / CSV, write)


def write_parquet(results: Results, folder: Path) -> Path:
    """Write `results.parquet` into the folder atomically."""
    import pyarrow as pa
    from pyarrow import parquet

    special = {"harness": pa.bool_(), "observations": pa.int64()}
    kinds = dict.fromkeys(COLUMNS, pa.string()) | dict.fromkeys(_NUMBERS, pa.float64()) | special
    table = pa.Table.from_pylist(rows(results), pa.schema(list(kinds.items())))
    return _put(folder / PARQUET, lambda part: parquet.write_table(table, part))


def _put(path: Path, write: Callable[[Path], object]) -> Path:
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.replace(path)
    return path
