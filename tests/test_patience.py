"""How long a load and a cell may take: what the download, or many computations, need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.checkpoints import FETCH_SECONDS
from conformance.engines.reference import ensemble
from conformance.inputs import manifest
from conformance.planning import jobs, plan
from conformance.records import Column
from conformance.runner import Limits
from conformance.runner.group import GroupRun
from conformance.runner.planned import Planned
from conformance.store import RunFolder
from tests import ours
from tests.faulty_run import job

ROOT = Path(__file__).parent.parent


class Silent:
    """A worker that says nothing; keeps what it is held to."""

    limits: Limits | None = None

    def hear(self) -> Iterator[dict[str, Any]]:
        return iter(())

    def kill_when_overdue(self, limits: Limits, now: float) -> None:
        self.limits = limits


@pytest.mark.parametrize(("own", "load"), [(0.0, 30.0), (10.0, 30.0), (900.0, 900.0)])
def test_a_job_of_its_own_patience_is_given_it_for_loading_only(
    tmp_path: Path, own: float, load: float
) -> None:
    asked = job("healthy", tmp_path)
    planned = Planned("a", lambda: asked, jobs.launch(jobs.BUILD), load=own)
    group = GroupRun(planned, asked, lambda event: None)
    worker = Silent()
    group.attempt = worker  # type: ignore[assignment]
    group.watch(Limits(cell=3.0, load=30.0))
    assert worker.limits == Limits(cell=3.0, load=load)


def test_a_cell_that_does_the_work_of_many_is_given_the_time_of_as_many(tmp_path: Path) -> None:
    asked = job("healthy", tmp_path)
    planned = Planned("a", lambda: asked, jobs.launch(jobs.REFERENCE), runs=8)
    group = GroupRun(planned, asked, lambda event: None)
    worker = Silent()
    group.attempt = worker  # type: ignore[assignment]
    group.watch(Limits(cell=3.0, load=30.0))
    assert worker.limits == Limits(cell=24.0, load=30.0)


def test_the_reference_has_a_columns_time_for_each_of_its_ways(tmp_path: Path) -> None:
    known = manifest.load(ROOT / "models.yaml")
    model = next(one for one in known.models if one.id == "llama")
    scenarios, columns = ours.scenarios(), [Column(known.backends[0])]
    cells = plan.cells([model], known.backends[:1], scenarios)
    made = jobs.planned_jobs(
        RunFolder(tmp_path), [model], columns, cells, scenarios, folder=ROOT, cache=tmp_path
    )
    runs = {job.id.partition(":")[2]: job.runs for job in made}
    ways = 1 + len(ensemble.members(sdpa=True))
    assert runs[jobs.REFERENCE.id] == runs[jobs.FORCED.id] == ways
    assert runs[jobs.BUILD.id] == runs[known.backends[0].id] == 1


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
