"""The matrix as a table: one row a cell, for spreadsheets and notebooks."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from conformance.records import Gain, Results
from conformance.report.looks import family

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


def frame(results: Results) -> pd.DataFrame:
    """Every cell, in the order of the run. `gain` is the one furthest from 1."""
    rows = []
    for cell in results.cells:
        gains = [judged.gain for judged in cell.observations if judged.gain is not None]
        gain: Gain | None = max(gains, key=lambda g: abs(g.g - 1), default=None)
        rows.append(
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
    table = pd.DataFrame(rows, columns=list(COLUMNS))
    numbers = ["worst_ratio", "gain", "gain_sigma", "seconds"]
    return table.astype(dict.fromkeys(numbers, "float64"))


def write_csv(results: Results, folder: Path) -> Path:
    """`results.csv` in the folder."""
    path = folder / "results.csv"
    frame(results).to_csv(path, index=False)
    return path


def write_parquet(results: Results, folder: Path) -> Path:
    """`results.parquet` in the folder. Needs pyarrow."""
    path = folder / "results.parquet"
    frame(results).to_parquet(path, index=False)
    return path
