"""`calibration.json`: written whole, and refused when somebody edited it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from conformance.errors import ConformanceError
from conformance.records import Calibration, Thresholds, digest, to_json
from conformance.store.files import read_record, write_record


def sealed(calibration: Calibration) -> Calibration:
    """With the digest of all that it says."""
    blank = json.loads(to_json(replace(calibration, digest="")))
    return replace(calibration, digest=digest(blank))


def thresholds(calibration: Calibration | None) -> Thresholds:
    """For the judge: the calibrated ones, else the starting values."""
    if calibration is None:
        return Thresholds()
    said = f"calibrated {calibration.date} on {calibration.cases} clean cases"
    return Thresholds(
        k_med=calibration.k_med,
        k_max=calibration.k_max,
        source=f"{said}, digest {calibration.digest}",
    )


def read(path: Path) -> Calibration | None:
    """What this file says, None when there is none.

    Raises ConformanceError for a file that is damaged, of another version, or was edited:
    thresholds that nobody measured must not look calibrated.
    """
    remedy = "measure anew: conformance calibrate (or put the committed file back)"
    try:
        found = read_record(Calibration, path)
    except ConformanceError as error:
        raise ConformanceError(str(error.message), path=path, remedy=remedy) from error
    if found is None:
        return None
    if sealed(found).digest != found.digest:
        raise ConformanceError(
            f"was edited: its digest is {found.digest!r}, what it says has {sealed(found).digest}",
            path=path,
            remedy=f"{remedy}; to try other thresholds: conformance judge --k-max",
        )
    if found.k_med > found.cap_med or found.k_max > found.cap_max:
        raise ConformanceError("says more than its caps", path=path, remedy=remedy)
    return found


def write(path: Path, calibration: Calibration) -> None:
    """By rename: an interrupted calibration leaves the old file as it was."""
    write_record(path, calibration)
