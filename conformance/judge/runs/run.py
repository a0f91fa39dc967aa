"""Judge a stored run: every planned cell gets a verdict. No engine is needed.

The models are judged in parallel processes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from conformance.judge.expectations import conclude, finding_of
from conformance.judge.runs.one_model import judge_model, model_info
from conformance.judge.runs.witness import find_confirmation
from conformance.runner.planning import engine_settings
from conformance.runner.planning.jobs import BUILD
from conformance.runner.processes.parallel import side_by_side, worth
from conformance.runner.store import RunFolder, reduced_model
from conformance.spec.builtin.engine_alone import WITHOUT_NNSIGHT
from conformance.spec.builtin.one_layer import ONE_LAYER
from conformance.spec.records import (
    SCHEMA,
    Cell,
    CellResult,
    Column,
    Confirmation,
    Environment,
    Footer,
    Model,
    Results,
    RunInfo,
    Thresholds,
)
from conformance.spec.scenario import Scenario, discover

#: The scenarios of a judging process.
_scenarios: dict[str, Scenario] = {}


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
    # The account of every worker that lived to write one.
    groups = (
        run.group(model, backend)
        for model, backend in run.groups()
        if backend != BUILD.id and engine_settings.MARK not in backend
    )
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
        groups=tuple(group for group in groups if group is not None and group.model in models),
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
    kept = reduced_model.read(run, model.id)
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
    reduced_model.reduce_model(run, model.id, judged, off, thresholds, confirmation, always)


def judge_models(
    run: RunFolder,
    scenarios: Mapping[str, Scenario],
    thresholds: Thresholds,
    *,
    done: Container[str] = (),
) -> dict[str, CellResult]:
    """Return the verdicts on a run's planned cells by id, without models whose cells are all
    `done`.
    """
    planned = run.plan()
    cells: dict[str, list[Cell]] = {model.id: [] for model in planned.models}
    for cell in planned.cells:
        cells[cell.model].append(cell)
    wanted = [
        model for model in planned.models if not all(cell.id in done for cell in cells[model.id])
    ]
    sizes = {model.id: model_info(run, model) for model in wanted}
    # The judging time grows with layers × width. The largest starts first: started last, it would
    # run alone at the end.
    models = sorted(wanted, key=lambda model: -sizes[model.id].layers * sizes[model.id].width)
    only = planned.only_float32()
    kept = reduced_model.reduced(run, [model.id for model in models])
    stored = reduced_model.cells(run, kept)
    calls = []
    for model in models:
        reduced = kept.get(model.id)
        own = [cell for cell in cells[model.id] if reduced is None or cell.key in reduced.cases]
        inside = set(own)
        before = {cell.id: stored[cell.id] for cell in cells[model.id] if cell not in inside}
        float32_only = frozenset(cell for cell in only if cell.model == model.id)
        context = (thresholds, planned.precisions, float32_only, before)
        calls.append((run.path, model, planned.columns, own, *context))
    folders = {scenario.path.parent for scenario in scenarios.values()}
    processes = worth(sum(len(cells[model.id]) for model in models)) if folders else 0
    judged: Iterable[dict[str, CellResult]]
    judged = (_judged(*call, scenarios=scenarios) for call in calls)
    if processes:
        judged = side_by_side(
            _judged, calls, processes=processes, begin=_begin, begin_with=(tuple(sorted(folders)),)
        )
    return {name: result for results in judged for name, result in results.items()}


def _begin(folders: tuple[Path, ...]) -> None:
    """Import the scenarios in a judging process: they hold functions, which cannot be pickled."""
    torch.set_num_threads(1)
    _scenarios.update(discover(folders))


def _judged(
    path: Path,
    model: Model,
    columns: Sequence[Column],
    cells: Sequence[Cell],
    *context: Any,
    scenarios: Mapping[str, Scenario] = _scenarios,
) -> dict[str, CellResult]:
    return judge_model(RunFolder(path), model, columns, cells, scenarios, *context)
