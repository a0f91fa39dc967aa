"""Merge runs of several machines: a column present in several runs gets one per machine."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from conformance.errors import ConformanceError
from conformance.judge.expectations import Standing, conclude
from conformance.report.grouping import group_by
from conformance.spec.records import (
    Cell,
    CellResult,
    Column,
    Environment,
    Footer,
    Gap,
    ModelInfo,
    Results,
    RunInfo,
    ScenarioInfo,
    Selection,
)


@dataclass(frozen=True, slots=True)
class Merged:
    """Several runs for one page. `origin` is the run and the original id of every cell."""

    results: Results
    sources: tuple[Results, ...]
    origin: Mapping[str, tuple[str, str]]


def merge(runs: Sequence[Results]) -> Merged:
    """Merge runs. Raises ConformanceError if they are incomplete or incompatible."""
    _refuse(runs)
    columns = _columns(runs)
    origin: dict[str, tuple[str, str]] = {}
    cells: list[CellResult] = []
    gaps = _gaps(runs)
    missing = (one for run in runs for one in run.selection.missing_parts)
    for run in runs:
        for cell in run.cells:
            column = columns[run.run.id, cell.backend].id
            name = Cell(cell.model, column, cell.scenario, cell.case).id
            if name in origin:
                both = (origin[name][0], run.run.id)
                raise ConformanceError(
                    f"runs {both[0]} and {both[1]} both hold {cell.id}, of the same hardware "
                    f"({', '.join(run.environment.devices)})",
                    remedy=f"compare them instead: conformance diff {both[0]} {both[1]}",
                )
            origin[name] = (run.run.id, cell.id)
            gap = None if cell.gap is None else list(gaps).index(_cause(run.gaps[cell.gap]))
            cells.append(replace(cell, id=name, backend=column, gap=gap))
    results = Results(
        schema=runs[0].schema,
        run=_info(runs),
        environment=_environment(runs),
        models=_models(runs),
        columns=_merged_columns(runs, columns),
        scenarios=_scenarios(runs),
        groups=tuple(
            # The reference is no column and keeps its name.
            replace(group, backend=column.id if column else group.backend)
            for run in runs
            for group in run.groups
            for column in [columns.get((run.run.id, group.backend))]
        ),
        cells=tuple(cells),
        footer=Footer(
            planned=sum(run.footer.planned for run in runs),
            judged=len(cells),
            verdicts=dict(sorted(Counter(str(cell.verdict) for cell in cells).items())),
            exit_code=conclude(cells, [*gaps.values()]).exit_code,
        ),
        gaps=tuple(gaps.values()),
        selection=Selection(missing_parts=tuple(dict.fromkeys(missing))),
    )
    return Merged(results, tuple(runs), origin)


def _gaps(runs: Sequence[Results]) -> dict[tuple[str, str], Gap]:
    """Return each gap once, preferring a run that found it in need of a fix."""
    gaps: dict[tuple[str, str], Gap] = {}
    for gap in (gap for run in runs for gap in run.gaps):
        if _cause(gap) not in gaps or Standing(gap.standing).wrong:
            gaps[_cause(gap)] = gap
    return gaps


def _cause(gap: Gap) -> tuple[str, str]:
    return gap.reason, gap.link


def _refuse(runs: Sequence[Results]) -> None:
    if len({run.run.id for run in runs}) < max(2, len(runs)):
        raise ConformanceError("there is nothing to merge", remedy="name several different runs")
    first = runs[0]
    for run in runs:
        judged_cells = run.footer.judged
        if judged_cells != run.footer.planned or judged_cells != len(run.cells):
            raise ConformanceError(
                f"run {run.run.id} is incomplete: {len(run.cells)} of {run.footer.planned} cells",
                remedy=f"finish it: conformance run --resume {run.run.id}",
            )
        if run.schema != first.schema:
            raise ConformanceError(
                f"runs {first.run.id} and {run.run.id} have results of different versions",
                remedy="judge both again: conformance judge RUN",
            )
        # The source of the limits does not matter.
        limits = replace(run.environment.thresholds, source=first.environment.thresholds.source)
        if limits != first.environment.thresholds:
            raise ConformanceError(
                f"runs {first.run.id} and {run.run.id} were judged by different thresholds",
                remedy="judge both again: conformance judge RUN",
            )


def _columns(runs: Sequence[Results]) -> dict[tuple[str, str], Column]:
    """Return every run's columns by (run, id), with the machine where several runs have them."""
    every = [(run, column) for run in runs for column in run.columns]
    machines = {
        name: _machines([run for run, _ in same])
        for name, same in group_by(every, lambda pair: pair[1].id).items()
    }
    return {
        (run.run.id, column.id): replace(column, machine=machines[column.id][run.run.id])
        for run, column in every
    }


def _machines(runs: Sequence[Results]) -> dict[str, str]:
    """Return a label for each run's machine; "" if all ran on the same hardware."""
    devices = {run.run.id: run.environment.devices for run in runs}
    if len(set(devices.values())) == 1:
        return dict.fromkeys(devices, "")
    kinds = {run.run.id: run.environment.device for run in runs}
    if len(set(kinds.values())) == len(set(devices.values())):
        return kinds
    return {
        name: re.sub(r"[^\w.-]+", "-", ", ".join(cards)).strip("-") or "unknown"
        for name, cards in devices.items()
    }


def _info(runs: Sequence[Results]) -> RunInfo:
    return RunInfo(
        id="+".join(run.run.id for run in runs),
        started=min(run.run.started for run in runs),
        finished=max(run.run.finished for run in runs),
        seconds=sum(run.run.seconds for run in runs),
        command=f"conformance report {' '.join(run.run.id for run in runs)}",
        jobs=max(run.run.jobs for run in runs),
        peak_mib=max(run.run.peak_mib for run in runs),
        resumed=sum(run.run.resumed for run in runs),
    )


def _environment(runs: Sequence[Results]) -> Environment:
    """Return the common environment; where runs differ, all values."""
    every = [run.environment for run in runs]
    packages = sorted({name for each in every for name in each.versions})
    return Environment(
        python=_all(each.python for each in every),
        platform=_all(each.platform for each in every),
        device=_all(each.device for each in every),
        devices=tuple(dict.fromkeys(name for each in every for name in each.devices)),
        settings=tuple(dict.fromkeys(name for each in every for name in each.settings)),
        versions={
            name: _all(each.versions.get(name, "not installed") for each in every)
            for name in packages
        },
        thresholds=every[0].thresholds,
    )


def _all(values: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(values))


def _models(runs: Sequence[Results]) -> tuple[ModelInfo, ...]:
    models: dict[str, ModelInfo] = {}
    for run in runs:
        for model in run.models:
            merged = models.setdefault(model.id, model)
            if merged.digest and model.digest and merged.digest != model.digest:
                holder = next(each.run.id for each in runs if merged in each.models)
                raise ConformanceError(
                    f"{model.id!r} is another checkpoint in run {run.run.id} than in "
                    f"{holder}: {model.digest} and {merged.digest}",
                    remedy="merge runs of the same weights",
                )
            if not merged.digest:
                models[model.id] = model
    return tuple(models.values())


def _merged_columns(
    runs: Sequence[Results], renamed: Mapping[tuple[str, str], Column]
) -> tuple[Column, ...]:
    columns: dict[str, Column] = {}
    for run in runs:
        for old in run.columns:
            column = renamed[run.run.id, old.id]
            merged = columns.setdefault(column.id, column)
            # Whether it runs by default does not matter.
            backend = replace(column.backend, default=merged.backend.default)
            if merged != replace(column, backend=backend):
                raise ConformanceError(
                    f"the column {old.id!r} is another one in run {run.run.id}: "
                    f"{column} and {merged}",
                    remedy="give them different ids in models.yaml",
                )
    return tuple(columns.values())


def _scenarios(runs: Sequence[Results]) -> tuple[ScenarioInfo, ...]:
    scenarios: dict[str, ScenarioInfo] = {}
    for run in runs:
        for scenario in run.scenarios:
            merged = scenarios.setdefault(scenario.id, scenario)
            if (merged.trace_source, merged.reference_source) != (
                scenario.trace_source,
                scenario.reference_source,
            ):
                raise ConformanceError(
                    f"the scenario {scenario.id!r} asks for something else in run {run.run.id}",
                    remedy="run both with the same scenario files",
                )
    return tuple(scenarios.values())
