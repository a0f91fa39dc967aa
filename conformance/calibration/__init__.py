"""How far apart honest bf16 runs are: the thresholds the judge gates on.

folder = clean_set(models, scenarios, ...)      # gather: the reference, many times
scores = held_out(folder.cases)                 # each honest run judged as if a backend
write(path, calibrate(scores, ...))             # calibration.json, which `run` reads
"""

from conformance.calibration.cleanset import clean_cases, gather, planned_cells, variants
from conformance.calibration.files import read, thresholds, write
from conformance.calibration.quantiles import CAP_MAX, CAP_MED, CASES_PER_ALARM, calibrate
from conformance.calibration.scores import CleanCase, Score, held_out, stored

__all__ = [
    "CAP_MAX",
    "CAP_MED",
    "CASES_PER_ALARM",
    "CleanCase",
    "Score",
    "calibrate",
    "clean_cases",
    "gather",
    "held_out",
    "planned_cells",
    "read",
    "stored",
    "thresholds",
    "variants",
    "write",
]
