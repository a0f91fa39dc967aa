"""Unexpected cells once more in fresh workers: first alone, then in their group's company.

Nothing is taken from the cache of observations, not even the reference: a repetition that
reads back the first result would prove nothing. In company, because a cell that fails only
after another one fails for a reason, not by accident.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from conformance import execution
from conformance.errors import ConformanceError, ExitCode
from conformance.judging_runs.attributing import one_stage
from conformance.records import Cell, Column, Results
from conformance.runner import Event, Limits
from conformance.scenario import Scenario
from conformance.store import RunFolder, RunPlan

#: Within the run's folder.
REPEATS = "repeats"


def repeat(
    run: RunFolder,
    cells: Collection[Cell],
    scenarios: Mapping[str, Scenario],
    *,
    rounds: int,
    cache: Path,
    limits: Limits,
    on_event: Callable[[Event], None],
) -> tuple[Results, ...]:
    """The results of every round. Raises ConformanceError when one is interrupted."""
    plan = run.plan()
    repeats: list[Results] = []
    for number in range(rounds):
        wanted = alone(plan, cells) if number == 0 else in_company(plan, cells)
        finished = execution.once_more(
            run.path / REPEATS,
            replace(plan, cells=wanted),
            scenarios,
            fresh=True,
            cache=cache,
            limits=limits,
            on_event=on_event,
        )
        if finished.results is None:
            raise ConformanceError(
                f"interrupted in repetition {number + 1} of {rounds}",
                remedy=f"the run is kept: conformance gate {run.id}",
                code=ExitCode.INTERRUPTED,
            )
        repeats.append(finished.results)
    return tuple(repeats)


def alone(plan: RunPlan, cells: Collection[Cell]) -> tuple[Cell, ...]:
    """These cells in the plan's order, with those that their verdicts refer to."""
    wanted = set(cells)
    wanted |= {
        Cell(cell.model, twin, cell.scenario, cell.case)
        for cell in cells
        if (twin := _twin(plan.columns, cell.backend))
    }
    return tuple(cell for cell in plan.cells if cell in wanted)


def in_company(plan: RunPlan, cells: Collection[Cell]) -> tuple[Cell, ...]:
    """Every planned cell of the groups that these are in."""
    groups = {(cell.model, cell.backend) for cell in cells}
    return alone(plan, [cell for cell in plan.cells if (cell.model, cell.backend) in groups])


def _twin(columns: Sequence[Column], name: str) -> str:
    column = next(column for column in columns if column.id == name)
    twin = one_stage(column, columns)
    return twin.id if twin else ""
