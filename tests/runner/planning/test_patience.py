"""How long a load and a cell may take: what the download, or many computations, need."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pytest

from conformance.engines.reference import engine, ensemble
from conformance.runner.planning import jobs, plan
from conformance.runner.scheduling import TimeLimits
from conformance.runner.scheduling.group import GroupRun
from conformance.runner.scheduling.planned import Planned
from conformance.runner.store import GroupFolder, RunFolder
from conformance.spec.inputs import manifest
from conformance.spec.records import Column, Precision
from conformance.spec.wheels import FETCH_SECONDS
from tests import ours
from tests.faulty_run import job

ROOT = Path(__file__).parents[3]


class Silent:
    """A worker that says nothing; keeps what it is held to."""

    limits: TimeLimits | None = None
    phase = "load"

    def hear(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def kill_when_overdue(self, limits: TimeLimits, now: float) -> None:
        self.limits = limits


@pytest.mark.parametrize(
    ("own", "held_to"),
    [
        ({}, TimeLimits(cell=3.0, load=30.0)),
        ({"load": 10.0}, TimeLimits(cell=3.0, load=30.0)),
        ({"load": 900.0}, TimeLimits(cell=3.0, load=900.0)),
        ({"limits": TimeLimits(cell=1.0, load=2.0)}, TimeLimits(cell=1.0, load=2.0)),
    ],
)
def test_a_job_of_its_own_patience_is_given_it(
    tmp_path: Path, own: dict[str, Any], held_to: TimeLimits
) -> None:
    asked = job("healthy", tmp_path)
    planned = Planned("a", lambda: asked, jobs.launch(jobs.BUILD), **own)
    group = GroupRun(planned, asked, lambda event: None)
    worker = Silent()
    group.attempt = worker  # type: ignore[assignment]
    group.watch(TimeLimits(cell=3.0, load=30.0))
    assert worker.limits == held_to


def test_the_reference_has_a_columns_time_for_each_of_its_ways(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That an event is heard so: tests/runner/scheduling/test_attempts.py."""
    ways = ensemble.members(sdpa=True)
    monkeypatch.setattr(engine, "flatten_runs", lambda *given, **more: {})
    monkeypatch.setattr(engine, "collect_branch_values", lambda *given: {})
    monkeypatch.setattr(engine, "continuation", lambda *given: {})
    monkeypatch.setattr(engine, "require_layers", lambda *given: None)
    reference = object.__new__(engine.ReferenceEngine)
    reference.job, reference.ensemble = job("healthy", tmp_path), ways
    reference.precisions, reference.scenario = sorted(Precision), ""
    reference.modules = MagicMock()
    model = MagicMock(modules=())
    reference.members = dict.fromkeys((ensemble.REFERENCE_RUN, *ways), model)
    monkeypatch.setattr(reference, "_weights", lambda member: None)
    folder = GroupFolder(reference.job.folder)
    folder.path.mkdir(parents=True)
    reference.run(MagicMock(), reference.job.cases[0])
    events = [json.loads(line) for line in folder.events.read_text().splitlines()]
    assert [one["event"] for one in events] == ["again"] * (1 + len(ways))
    assert {one["case"] for one in events} == {reference.job.cases[0].key}


def test_no_build_is_ended_before_its_downloads_are_given_up(tmp_path: Path) -> None:
    known = manifest.load(ROOT / "models.yaml")
    model = next(one for one in known.models if len(one.sources) == 2)
    scenarios, columns = ours.scenarios(), [Column(known.backends[0])]
    cells = plan.cells([model], known.backends[:1], scenarios)
    build, reference, *_ = jobs.planned_jobs(
        RunFolder(tmp_path), [model], columns, cells, scenarios, folder=ROOT, cache=tmp_path
    )
    assert build.load > len(model.sources) * FETCH_SECONDS
    assert reference.load == 0.0


def test_the_first_small_model_that_is_built_here_leads_and_the_others_keep_their_order(
    tmp_path: Path,
) -> None:
    known = manifest.load(ROOT / "models.yaml")
    by_id = {model.id: model for model in known.models}
    models = [by_id[name] for name in ("smollm2-135m", "llama", "qwen3", "mamba2")]
    scenarios, columns = ours.scenarios(), [Column(known.backends[0])]
    # The smallest is a Mamba, whose reference is slow; qwen3 has hardly more cells.
    kept = {"smollm2-135m": 9, "llama": 40, "qwen3": 12, "mamba2": 10}
    cells = [
        cell
        for model in models
        for cell in plan.cells([model], known.backends[:1], scenarios)[: kept[model.id]]
    ]
    planned = jobs.planned_jobs(
        RunFolder(tmp_path), models, columns, cells, scenarios, folder=ROOT, cache=tmp_path
    )
    order = list(dict.fromkeys(one.id.partition(":")[0] for one in planned))
    assert order == ["qwen3", "smollm2-135m", "llama", "mamba2"]
