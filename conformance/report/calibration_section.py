"""How the thresholds were set, for the page and the terminal: the same figures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.table import Table
from rich.text import Text

from conformance.records import Calibration, ModelScores
from conformance.report.terminal import shown
from conformance.report.words import number, times


@dataclass(frozen=True, slots=True)
class Row:
    """One model: what it needs, and whether that is more than the caps."""

    scores: ModelScores
    beyond: bool


def rows(calibration: Calibration) -> list[Row]:
    """The models, the one that needs most first."""
    found = [Row(one, one.model in calibration.beyond) for one in calibration.models]
    return sorted(found, key=lambda row: -row.scores.max)


def sentences(calibration: Calibration) -> Iterator[str]:
    """What was measured, what came of it, and what that bounds."""
    yield (
        f"A value passes up to {number(calibration.k_med)} times the noise floor at the median "
        f"token and {number(calibration.k_max)} times at the worst."
    )
    yield (
        f"Measured on {calibration.date} on {calibration.cases:,} clean cases of "
        f"{len(calibration.models)} models: {calibration.held_out:,} honest bf16 runs, each held "
        f"out of the ensemble in turn; {calibration.alarms} of them are beyond the thresholds."
    )
    yield (
        f"Each model's quantile accepts one false alarm in {calibration.cases_per_alarm} cases "
        f"(split conformal); the largest is taken, and at most {number(calibration.cap_med)} and "
        f"{number(calibration.cap_max)}."
    )
    for one in calibration.models:
        if one.model in calibration.beyond:
            yield (
                f"{one.model} needs more than the caps ({number(one.med)} and {number(one.max)}, "
                f"at {one.worst}): that is reported as drift, and not accommodated."
            )


def show(calibration: Calibration, path: Path, console: Console) -> None:
    """The same as text, at the end of `conformance calibrate`."""
    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("model")
    for title in ("clean cases", "honest runs", "median", "worst", "alarms"):
        table.add_column(title, justify="right")
    table.add_column("the furthest was")
    for row in rows(calibration):
        one = row.scores
        table.add_row(
            Text(shown(one.model), style="magenta" if row.beyond else ""),
            str(one.cases),
            str(one.held_out),
            times(one.med, calibration.cap_med),
            times(one.max, calibration.cap_max),
            str(one.alarms),
            Text(shown(one.worst), style="dim"),
        )
    console.print(table)
    for sentence in sentences(calibration):
        console.print(Text(shown(sentence)), soft_wrap=True)
    console.print(Text(str(path)), soft_wrap=True)
