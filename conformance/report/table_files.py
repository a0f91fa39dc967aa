"""The matrix as a table with one row per cell, for spreadsheets and notebooks."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from conformance.report.verdict_styles import family
from conformance.runner.store.files import write_text
from conformance.spec.records import Gain, Results

CSV = "results.csv"
PARQUET = "results.parquet"

COLUMNS = (
    *("id", "model", "architecture", "backend", "scenario", "case", "verdict", "family", "reason"),
    *("diagnosis", "attribution", "evidence", "expected", "harness", "worst_ratio", "worst_site"),
    *("gain", "gain_sigma", "observations", "seconds", "command"),
)

#: The float columns; the others are strings, except the bool `harness` and int `observations`.
_NUMBERS = ("worst_ratio", "gain", "gain_sigma", "seconds")


def rows(results: Results) -> list[dict[str, Any]]:
    """Return every cell in the order of the run. `gain` is its observations' gain that is furthest
    from 1.
    """
    table = []
    for cell in results.cells:
        gains = [judged.gain for judged in cell.observations if judged.gain is not None]
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


def write(results: Results, folder: Path) -> None:
    """Write `results.csv` and `results.parquet` atomically."""
    import pyarrow as pa
    from pyarrow import parquet

    cells = rows(results)
    text = io.StringIO()
    table = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    table.writeheader()
    table.writerows(cells)
    write_text(folder / CSV, text.getvalue())

    special = {"harness": pa.bool_(), "observations": pa.int64()}
    kinds = dict.fromkeys(COLUMNS, pa.string()) | dict.fromkeys(_NUMBERS, pa.float64()) | special
    part = folder / f".{PARQUET}.part"
    parquet.write_table(pa.Table.from_pylist(cells, pa.schema(list(kinds.items()))), part)
    part.replace(folder / PARQUET)
