"""The matrix as a table: one row a cell, for spreadsheets and notebooks."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pandas as pd

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


def write(results: Results, folder: Path) -> tuple[Path, ...]:
    """`results.csv`, and `results.parquet` where pyarrow is installed; else it is said once."""
    written = write_csv(results, folder)
    if importlib.util.find_spec("pyarrow") is not None:
        return written, write_parquet(results, folder)
    # One of an earlier judgement would contradict the rest.
    (folder / PARQUET).unlink(missing_ok=True)
    _say(f"{PARQUET} is not written: it needs pyarrow (pip install pyarrow)")
    return (written,)


@cache
def _say(words: str) -> None:
    sys.stderr.write(f"{words}\n")


def write_csv(results: Results, folder: Path) -> Path:
    """`results.csv` in the folder; there whole or not at all."""
    return _put(folder / CSV, lambda part: frame(results).to_csv(part, index=False))


def write_parquet(results: Results, folder: Path) -> Path:
    """`results.parquet` in the folder; there whole or not at all. Needs pyarrow."""
    return _put(folder / PARQUET, lambda part: frame(results).to_parquet(part, index=False))


def _put(path: Path, write: Callable[[Path], object]) -> Path:
    part = path.with_name(f".{path.name}.part")
    write(part)
    part.replace(path)
    return path
