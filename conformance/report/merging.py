"""Runs of several machines as one: a column for each machine where they have the same one."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from conformance.errors import ConformanceError
from conformance.records import (
    Backend,
    Cell,
    CellResult,
    Environment,
    Footer,
    ModelInfo,
    Results,
    RunInfo,
    ScenarioInfo,
)


@dataclass(frozen=True, slots=True)
class Merged:
    """One page's worth of several runs. `origin` is the run and the id there of every cell."""

    results: Results
    sources: tuple[Results, ...]
    origin: Mapping[str, tuple[str, str]]


def merged(runs: Sequence[Results]) -> Merged:
    """Raises ConformanceError for runs that are incomplete or cannot stand side by side."""
    _refuse(runs)
    names = _columns(runs)
    origin: dict[str, tuple[str, str]] = {}
    cells: list[CellResult] = []
    for run in runs:
        for cell in run.cells:
            column = names[run.run.id, cell.backend]
            name = Cell(cell.model, column, cell.scenario, cell.case).id
            if name in origin:
                raise _same_cell(cell.id, (origin[name][0], run.run.id), run)
            origin[name] = (run.run.id, cell.id)
            cells.append(replace(cell, id=name, backend=column))
    whole = Results(
        schema=runs[0].schema,
        run=_info(runs),
        environment=_environment(runs),
        models=_models(runs),
        backends=_backends(runs, names),
        scenarios=_scenarios(runs),
        groups=tuple(
            replace(group, backend=names.get((run.run.id, group.backend), group.backend))
            for run in runs
            for group in run.groups
        ),
        cells=tuple(cells),
        footer=Footer(
            planned=sum(run.footer.planned for run in runs),
            judged=len(cells),
            verdicts=dict(sorted(Counter(str(cell.verdict) for cell in cells).items())),
            exit_code=max(run.footer.exit_code for run in runs),
        ),
    )
    return Merged(whole, tuple(runs), origin)


def _refuse(runs: Sequence[Results]) -> None:
    if len({run.run.id for run in runs}) < max(2, len(runs)):
        raise ConformanceError("there is nothing to merge", remedy="name several different runs")
    first = runs[0]
    for run in runs:
        judged = run.footer.judged
        if judged != run.footer.planned or judged != len(run.cells):
            raise ConformanceError(
                f"run {run.run.id} is incomplete: {len(run.cells)} of {run.footer.planned} cells",
                remedy=f"finish it: conformance run --resume {run.run.id}",
            )
        if run.schema != first.schema:
            raise ConformanceError(
                f"runs {first.run.id} and {run.run.id} have results of different versions",
                remedy="judge both again: conformance judge RUN",
            )
        if _limits(run) != _limits(first):
            raise ConformanceError(
                f"runs {first.run.id} and {run.run.id} were judged by different thresholds",
                remedy="judge both by the same: conformance judge RUN --calibration FILE",
            )


def _limits(run: Results) -> dict[str, Any]:
    """What was judged with, wherever it comes from."""
    return {k: v for k, v in asdict(run.environment.thresholds).items() if k != "source"}


def _columns(runs: Sequence[Results]) -> dict[tuple[str, str], str]:
    """A name for every column of every run: its own, and the machine's where several have it."""
    holding: dict[str, list[Results]] = defaultdict(list)
    for run in runs:
        for name in dict.fromkeys([cell.backend for cell in run.cells]):
            holding[name].append(run)
    found: dict[tuple[str, str], str] = {}
    for name, those in holding.items():
        labels = _machines(those)
        for run in those:
            label = labels[run.run.id]
            found[run.run.id, name] = f"{name}@{label}" if label else name
    return found


def _machines(runs: Sequence[Results]) -> dict[str, str]:
    """A label for each run's machine; "" where all ran on the same hardware."""
    devices = {run.run.id: run.environment.devices for run in runs}
    if len(set(devices.values())) == 1:
        return dict.fromkeys(devices, "")
    kinds = {run.run.id: run.environment.device for run in runs}
    if len(set(kinds.values())) == len(set(devices.values())):
        return kinds
    return {
        name: re.sub(r"[^\w.-]+", "-", ", ".join(found)).strip("-") or "unknown"
        for name, found in devices.items()
    }


def _same_cell(cell: str, runs: tuple[str, str], run: Results) -> ConformanceError:
    return ConformanceError(
        f"runs {runs[0]} and {runs[1]} both hold {cell}, of the same hardware "
        f"({', '.join(run.environment.devices)})",
        remedy=f"compare them instead: conformance diff {runs[0]} {runs[1]}",
    )


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
    """What all have, and where they differ all of it."""
    every = [run.environment for run in runs]
    packages = sorted({name for one in every for name in one.versions})
    return Environment(
        python=_all(one.python for one in every),
        platform=_all(one.platform for one in every),
        device=_all(one.device for one in every),
        devices=tuple(dict.fromkeys(name for one in every for name in one.devices)),
        versions={
            name: _all(one.versions.get(name, "not installed") for one in every)
            for name in packages
        },
        thresholds=every[0].thresholds,
        calibration=every[0].calibration,
    )


def _all(values: Iterable[str]) -> str:
    return " / ".join(dict.fromkeys(values))


def _models(runs: Sequence[Results]) -> tuple[ModelInfo, ...]:
    found: dict[str, ModelInfo] = {}
    for run in runs:
        for model in run.models:
            known = found.setdefault(model.id, model)
            if known.digest and model.digest and known.digest != model.digest:
                raise ConformanceError(
                    f"{model.id!r} is another checkpoint in run {run.run.id} than in "
                    f"{_holder(runs, model.id)}: {model.digest} and {known.digest}",
                    remedy="merge runs of the same weights",
                )
            if not known.digest:
                found[model.id] = model
    return tuple(found.values())


def _holder(runs: Sequence[Results], model: str) -> str:
    return next(run.run.id for run in runs if any(one.id == model for one in run.models))


def _backends(runs: Sequence[Results], names: Mapping[tuple[str, str], str]) -> tuple[Backend, ...]:
    found: dict[str, Backend] = {}
    for run in runs:
        for backend in run.backends:
            name = names.get((run.run.id, backend.id), backend.id)
            known = found.setdefault(name, replace(backend, id=name))
            if replace(known, default=True) != replace(backend, id=name, default=True):
                raise ConformanceError(
                    f"the column {backend.id!r} is another one in run {run.run.id}: "
                    f"{backend} and {known}",
                    remedy="give them different ids in models.yaml",
                )
    return tuple(found.values())


def _scenarios(runs: Sequence[Results]) -> tuple[ScenarioInfo, ...]:
    found: dict[str, ScenarioInfo] = {}
    for run in runs:
        for scenario in run.scenarios:
            known = found.setdefault(scenario.id, scenario)
            if _asks(known) != _asks(scenario):
                raise ConformanceError(
                    f"the scenario {scenario.id!r} asks for something else in run {run.run.id}",
                    remedy="run both with the same scenario files",
                )
    return tuple(found.values())


def _asks(scenario: ScenarioInfo) -> tuple[str, str]:
    return scenario.trace_source, scenario.reference_source
