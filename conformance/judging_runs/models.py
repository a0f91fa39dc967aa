"""Judge the models of a run in parallel processes."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from pathlib import Path

import torch

from conformance.judging_runs.one_model import judge_model, model_info
from conformance.processes.parallel import side_by_side, worth
from conformance.records import Cell, CellResult, Column, Model, Precision, Thresholds
from conformance.scenario import Scenario, discover
from conformance.store import RunFolder, keeping

#: The scenarios of a judging process.
_scenarios: dict[str, Scenario] = {}


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
    kept = keeping.reduced(run, [model.id for model in models])
    stored = keeping.cells(run, kept)
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
    judged: Iterable[dict[str, CellResult]] = (_judged(*call, scenarios) for call in calls)
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
    thresholds: Thresholds,
    precisions: Sequence[Precision],
    float32_only: frozenset[Cell],
    before: Mapping[str, CellResult],
    scenarios: Mapping[str, Scenario] = _scenarios,
) -> dict[str, CellResult]:
    run = RunFolder(path)
    return judge_model(
        run, model, columns, cells, scenarios, thresholds, precisions, float32_only, before
    )
