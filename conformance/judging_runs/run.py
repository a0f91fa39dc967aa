"""Judge a stored run: every planned cell gets a verdict. No engine is needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

from conformance.builtin.engine_alone import WITHOUT_NNSIGHT
from conformance.builtin.one_layer import ONE_LAYER
from conformance.expectations import conclude, finding_of
from conformance.judging_runs.models import judge_models
from conformance.judging_runs.one_model import model_info
from conformance.judging_runs.witness import find_confirmation
from conformance.planning import engine_settings
from conformance.planning.jobs import BUILD
from conformance.records import (
    SCHEMA,
    CellResult,
    Column,
    Confirmation,
    Environment,
    Footer,
    Group,
    Model,
    Results,
    RunInfo,
    Thresholds,
)
from conformance.scenario import Scenario
from conformance.store import RunFolder, keeping


def judge_run(
    run: RunFolder,
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    *,
    info: RunInfo,
    environment: Environment,
    before: Mapping[str, CellResult] | None = None,
) -> Results:
    """Return the verdict on every planned cell of a stored run.

    Models whose cells were all judged `before`, during the run, are not judged again. Raises
    ConformanceError for a run without a plan or with damaged observations.
    """
    before = before or {}
    judged = {**before, **judge_models(run, scenarios, thresholds, done=before)}
    machine = replace(environment, thresholds=thresholds)
    return results_of(run, scenarios, judged, info=info, environment=machine)


def results_of(
    run: RunFolder,
    scenarios: Mapping[str, Scenario],
    judged: Mapping[str, CellResult],
    *,
    info: RunInfo,
    environment: Environment,
) -> Results:
    """Return the results of the models that have a `judged` cell."""
    planned = run.plan()
    cells_in_order = tuple(judged[cell.id] for cell in planned.cells if cell.id in judged)
    models = {cell.model for cell in cells_in_order}
    names = {cell.scenario for cell in planned.cells}
    return Results(
        schema=SCHEMA,
        run=info,
        environment=environment,
        models=tuple(
            replace(model_info(run, model), truth=_confirmation(run, model, planned.columns))
            for model in planned.models
            if model.id in models
        ),
        columns=planned.columns,
        scenarios=tuple(
            scenario.info() for scenario in scenarios.values() if scenario.name in names
        ),
        groups=tuple(group for group in _groups(run) if group.model in models),
        cells=cells_in_order,
        selection=planned.selection,
        footer=Footer(
            planned=len(planned.cells),
            judged=len(cells_in_order),
            verdicts=dict(sorted(Counter(str(c.verdict) for c in cells_in_order).items())),
            exit_code=conclude(cells_in_order).exit_code,
        ),
    )


def _confirmation(run: RunFolder, model: Model, columns: Sequence[Column]) -> Confirmation:
    kept = keeping.read(run, model.id)
    return find_confirmation(run, model, columns) if kept is None else kept.truth


def reduce_judged(
    run: RunFolder,
    model: Model,
    columns: Sequence[Column],
    judged: Mapping[str, CellResult],
    thresholds: Thresholds,
) -> None:
    """Reduce a model whose cells are all judged: keep tensors only of unexpected results."""
    confirmation = _confirmation(run, model, columns)
    always = (*WITHOUT_NNSIGHT, ONE_LAYER.name)
    off = {cell.id for cell in judged.values() if not finding_of(cell).fine}
    keeping.reduce_model(run, model.id, judged, off, thresholds, confirmation, always)


def _groups(run: RunFolder) -> tuple[Group, ...]:
    """Return the account of every worker that lived to write one."""
    groups = (
        run.group(model, backend)
        for model, backend in run.groups()
        if backend != BUILD.id and engine_settings.MARK not in backend
    )
    return tuple(group for group in groups if group is not None)
