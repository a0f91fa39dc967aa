"""Run unexpected cells again in fresh workers: first alone, then with their whole group.

Nothing comes from the observation cache, not even the reference: a repetition that reads back the
first result would prove nothing. The second round includes the group because a cell that fails only
after another cell has a cause and is not flaky.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path

from conformance.commands.shared import execution
from conformance.errors import ConformanceError, ExitCode
from conformance.judge.runs.attributing import find_one_stage
from conformance.runner.scheduling import Event, TimeLimits
from conformance.runner.store import RunFolder, RunPlan
from conformance.spec.records import Cell, Results
from conformance.spec.scenario import Scenario


def repeat(
    run: RunFolder,
    cells: Collection[Cell],
    scenarios: Mapping[str, Scenario],
    *,
    rounds: int,
    cache: Path,
    limits: TimeLimits,
    on_event: Callable[[Event], None],
) -> tuple[Results, ...]:
    """Return the results of every round. Raises ConformanceError when one is interrupted."""
    plan = run.plan()
    repeats: list[Results] = []
    for number in range(rounds):
        wanted = select_needed(plan, cells) if number == 0 else select_groups(plan, cells)
        finished = execution.start_again(
            run.path / "repeats",
            replace(plan, cells=wanted),
            scenarios,
            fresh=True,
            cache=cache,
            limits=limits,
            on_event=on_event,
        )
        if finished is None:
            raise ConformanceError(
                f"interrupted in repetition {number + 1} of {rounds}",
                remedy=f"the run is kept: conformance gate {run.id}",
                code=ExitCode.INTERRUPTED,
            )
        repeats.append(finished[0])
    return tuple(repeats)


def select_needed(plan: RunPlan, cells: Collection[Cell]) -> tuple[Cell, ...]:
    """Return these cells in the plan's order, with the cells that their verdicts refer to."""
    single = {column.id: find_one_stage(column, plan.columns) for column in plan.columns}
    wanted = set(cells)
    for cell in cells:
        if column := single[cell.backend]:
            wanted.add(Cell(cell.model, column.id, cell.scenario, cell.case))
    return tuple(cell for cell in plan.cells if cell in wanted)


def select_groups(plan: RunPlan, cells: Collection[Cell]) -> tuple[Cell, ...]:
    """Return every planned cell of the groups that contain these cells."""
    groups = {(cell.model, cell.backend) for cell in cells}
    return select_needed(
        plan, [cell for cell in plan.cells if (cell.model, cell.backend) in groups]
    )
