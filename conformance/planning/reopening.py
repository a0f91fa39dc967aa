"""Select the cases of reduced models that a resumed run repeats.

A reduced model has verdicts but no tensors of passing cases. If the outcome of a cell was removed,
it cannot be judged alone: its case is repeated in every column. If other versions are installed
now, all cases of the model are repeated: its groups have one set of versions.
"""

from __future__ import annotations

import sys
from pathlib import Path

from conformance.planning.jobs import launch
from conformance.store import RunFolder, RunPlan, installed_in, keeping


def reopen_incomplete(run: RunFolder, plan: RunPlan) -> None:
    """Reopen the cases of reduced models that lack an outcome.

    Raises ConformanceError if an interpreter does not report its versions.
    """
    reduced = keeping.reduced(run, [model.id for model in plan.models])
    nowhere = {column.id for column in plan.columns if column.untestable}
    missing = [cell for cell in run.ungathered() if cell.backend not in nowhere] if reduced else []
    for model, kept in reduced.items():
        cases = {*kept.reopened, *(cell.key for cell in missing if cell.model == model)}
        if not cases:
            continue
        planned = {cell.key for cell in plan.cells if cell.model == model}
        settled = set() if _have_versions_changed(run, plan, model) else planned - cases
        keeping.reopen(run, model, cases, settled)


def _have_versions_changed(run: RunFolder, plan: RunPlan, model: str) -> bool:
    """Return whether a group of the model ran with other versions than its interpreter has now."""
    pythons = {column.id: launch(column).python for column in plan.columns if not column.untestable}
    groups = [run.group(model, folder) for name, folder in run.groups() if name == model]
    return any(
        dict(group.versions) != dict(installed_in(pythons.get(group.backend, Path(sys.executable))))
        for group in groups
        if group is not None and group.versions
    )
