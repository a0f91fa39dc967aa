"""How the thresholds were set, for the page and the terminal: the same figures."""

from __future__ import annotations

from collections.abc import Iterator

from conformance.records import Calibration
from conformance.report.sections import Column, Note, Section, Table, Text
from conformance.report.words import number, times

_COLUMNS = (
    Column("model"),
    Column("clean cases", figure=True),
    Column("honest runs", figure=True),
    Column("median", figure=True, hint="quantile of the median token, × the noise floor"),
    Column("worst", figure=True, hint="quantile of the worst token, × the noise floor"),
    Column("alarms", figure=True, hint="honest runs beyond the thresholds"),
    Column("the furthest was"),
)


def section(calibration: Calibration) -> Section:
    """What was measured and what each model needs, the one that needs most first."""
    ordered = sorted(calibration.models, key=lambda scores: -scores.max)
    rows = tuple(
        (
            Text(scores.model, tag="more than the caps" * (scores.model in calibration.beyond)),
            str(scores.cases),
            str(scores.held_out),
            times(scores.med, calibration.cap_med),
            times(scores.max, calibration.cap_max),
            str(scores.alarms),
            scores.worst,
        )
        for scores in ordered
    )
    versions = ", ".join(f"{name} {version}" for name, version in calibration.versions.items())
    source = (
        f"digest {calibration.digest}, scores {calibration.scores} · {calibration.device} · "
        f"{versions}"
    )
    return Section(
        "Calibration",
        (
            *map(Note, sentences(calibration)),
            Table(_COLUMNS, rows, first=len(rows)),
            Note(Text(source, quiet=True)),
        ),
        id="calibration",
    )


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
    for scores in calibration.models:
        if scores.model in calibration.beyond:
            yield (
                f"{scores.model} needs more than the caps ({number(scores.med)} and "
                f"{number(scores.max)}, at {scores.worst}): that is reported as drift, and not "
                f"accommodated."
            )
