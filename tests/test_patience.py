"""How long a load may take: as long as the download that it waits for."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from conformance.checkpoints import FETCH_SECONDS
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
