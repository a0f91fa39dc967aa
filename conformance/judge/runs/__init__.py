"""Judge stored observations with the pure judge of `conformance.judge.cell`.

results = judge_run(folder, scenarios, thresholds, info=..., environment=...)
cells = judge_model(folder, model, columns, cells, scenarios, thresholds)    # one model's
"""

from conformance.judge.runs.one_model import OneModel, judge_model
from conformance.judge.runs.run import judge_run, reduce_judged, results_of

__all__ = ["OneModel", "judge_model", "judge_run", "reduce_judged", "results_of"]
