"""Groups on real Ray nodes: each verdict comes home, whatever happens to a machine."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from conformance.commands.doctor.diagnosis import diagnose_cluster
from conformance.runner.cluster import connect, node
from conformance.runner.processes import sessions
from conformance.runner.scheduling import CellFinished, CellStarted, GroupStarted, TimeLimits
from conformance.runner.scheduling.loop import Runner
from conformance.spec.inputs import manifest
from conformance.spec.records import Status
from tests.faulty_run import CASES, group, outcome_of
from tests.patience import PATIENCE
from tests.runner.cluster.nodes import Nodes, nodes, on, planned

ROOT = Path(__file__).parents[3]

pytestmark = [pytest.mark.slow]
pytest.importorskip("ray")


@pytest.fixture(scope="module")
def head() -> Iterator[Nodes]:
    with nodes() as cluster:
        yield cluster


@pytest.fixture
def cluster(head: Nodes) -> Iterator[Nodes]:
    yield head
    head.clear()


def outcomes(folder: Path, engine: str) -> dict[str, Status]:
    found = group(folder, engine)
    every = {case: found.outcome(f"plain.{case}") for case in CASES}
    return {case: outcome.status for case, outcome in every.items() if outcome is not None}


def processes_of(node: str) -> list[psutil.Process]:
    """The workers and zygotes on a node, known by its variable."""
    found = []
    for process in psutil.process_iter():
        try:
            ours = process.environ().get("NODE") == node
            if ours and any("conformance.worker" in word for word in process.cmdline()):
                found.append(process)
        except psutil.Error:
            continue
    return found


def test_a_group_comes_home_whole(cluster: Nodes, tmp_path: Path) -> None:
    cluster.add("only")
    heard: list[Any] = []
    summary = on(cluster, [planned("healthy", tmp_path)], tmp_path, heard.append)
    assert summary.done["healthy"].ok and summary.finished == 3
    assert outcomes(tmp_path, "healthy") == dict.fromkeys(CASES, Status.OK)
    there = group(tmp_path, "healthy")
    assert set(there.observations("plain.first")) == {"p0/s0/logits", "p1/s0/logits"}
    assert there.log.is_file() and b'"closed"' in there.events.read_bytes()
    assert set(there.keys()) == {f"plain.{case}" for case in CASES}
    record = there.group()
    assert record is not None and record.machine and record.lost == ()
    assert [type(event) for event in heard].count(CellFinished) == 3


def test_what_was_finished_is_not_sent_again(cluster: Nodes, tmp_path: Path) -> None:
    cluster.add("only")
    first = on(cluster, [planned("healthy", tmp_path)], tmp_path)
    group(tmp_path, "healthy").drop_cell("plain.bad")
    again = on(cluster, [planned("healthy", tmp_path)], tmp_path)
    assert (first.finished, first.resumed) == (3, 0)
    assert (again.finished, again.resumed) == (1, 2)


def test_the_groups_of_a_lost_machine_run_elsewhere(cluster: Nodes, tmp_path: Path) -> None:
    cluster.add("doomed")
    lost: list[int] = []

    def tell(event: Any) -> None:
        if isinstance(event, CellStarted) and event.case == "plain.bad" and not lost:
            lost.extend(process.pid for process in processes_of("doomed"))
            cluster.add("heir")
            cluster.kill("doomed")

    summary = on(cluster, [planned("StopsWhereDoomed", tmp_path)], tmp_path, tell)
    assert lost, "it did not begin where it was to be lost"
    assert summary.done["StopsWhereDoomed"].ok, summary.done["StopsWhereDoomed"].reason
    assert outcomes(tmp_path, "StopsWhereDoomed") == dict.fromkeys(CASES, Status.OK)
    record = group(tmp_path, "StopsWhereDoomed").group()
    assert record is not None and len(record.lost) == 1 and record.machine != record.lost[0]
    psutil.wait_procs([psutil.Process(pid) for pid in lost if psutil.pid_exists(pid)], PATIENCE)
    assert not any(map(sessions.is_alive, lost)), "a lost machine's engine lives on"


def test_where_every_machine_is_lost_the_harness_has_failed(cluster: Nodes, tmp_path: Path) -> None:
    cluster.add("doomed")
    begun: list[Any] = []

    def tell(event: Any) -> None:
        if isinstance(event, CellStarted) and event.case == "plain.bad" and not begun:
            begun.append(event)
            cluster.kill("doomed")

    summary = on(cluster, [planned("StopsWhereDoomed", tmp_path)], tmp_path, tell)
    assert not summary.done["StopsWhereDoomed"].ok
    outcome = outcome_of(tmp_path, "StopsWhereDoomed", "bad")
    assert outcome.harness and "was lost" in outcome.reason


@pytest.fixture
def other_nnsight(tmp_path: Path) -> str:
    """A folder that comes first on a path, with another version of what the run has."""
    about = tmp_path / "path" / "nnsight-0.0.1.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: nnsight\nVersion: 0.0.1\n")
    return os.pathsep.join([str(about.parent), os.environ.get("PYTHONPATH", "")])


def test_a_machine_without_the_environment_is_told_and_passed_over(
    cluster: Nodes, tmp_path: Path, other_nnsight: str
) -> None:
    cluster.add("without", PYTHONPATH=other_nnsight)
    refused = on(cluster, [planned("healthy", tmp_path / "a")], tmp_path / "a")
    assert not refused.done["healthy"].ok
    outcome = outcome_of(tmp_path / "a", "healthy", "first")
    assert outcome.harness
    assert "no machine of the cluster can run it" in outcome.reason
    assert "nnsight 0.0.1 instead of" in outcome.reason
    cluster.add("with")
    summary = on(cluster, [planned("healthy", tmp_path / "b")], tmp_path / "b")
    assert summary.done["healthy"].ok


def test_a_machine_without_the_package_says_so_itself(cluster: Nodes, tmp_path: Path) -> None:
    # The driver's own folders come first on a node's path: only the interpreter comes before.
    begins = tmp_path / "sitecustomize.py"
    begins.write_text("import sys; sys.modules['conformance'] = None")
    cluster.add("without", PYTHONPATH=str(tmp_path))
    with connect(cluster.address) as joined:
        words = [machine.cannot for machine in joined.machines]
    assert any("conformance cannot be used" in each and "ModuleNotFound" in each for each in words)


def test_a_group_that_no_machine_has_room_for_is_refused_at_once(
    cluster: Nodes, tmp_path: Path
) -> None:
    cluster.add("small")
    summary = on(cluster, [planned("healthy", tmp_path, stages=3)], tmp_path)
    outcome = outcome_of(tmp_path, "healthy", "first")
    assert not summary.done["healthy"].ok
    assert outcome.harness and "has 1 of 3 CPUs" in outcome.reason


def test_an_engine_that_fails_is_to_blame_itself_wherever_it_runs(
    cluster: Nodes, tmp_path: Path
) -> None:
    cluster.add("only")
    on(cluster, [planned("aborts", tmp_path)], tmp_path)
    outcome = outcome_of(tmp_path, "aborts", "bad")
    assert outcome.status is Status.CRASH and not outcome.harness


def test_ctrl_c_ends_what_runs_and_keeps_what_is_finished(cluster: Nodes, tmp_path: Path) -> None:
    cluster.add("doomed")
    groups = [planned("StopsWhereDoomed", tmp_path)]

    def tell(event: Any) -> None:
        if isinstance(event, CellStarted) and event.case == "plain.bad":
            os.kill(os.getpid(), signal.SIGINT)

    summary = on(cluster, groups, tmp_path, tell)
    assert summary.interrupted and summary.finished == 1
    assert outcomes(tmp_path, "StopsWhereDoomed") == {"first": Status.OK}
    assert processes_of("doomed") == []
    cluster.add("heir")
    cluster.kill("doomed")
    again = on(cluster, groups, tmp_path)
    assert not again.interrupted and (again.finished, again.resumed) == (2, 1)
    assert outcomes(tmp_path, "StopsWhereDoomed") == dict.fromkeys(CASES, Status.OK)


def test_groups_begin_by_what_there_is_room_for(cluster: Nodes, tmp_path: Path) -> None:
    """Two machines of one processor each: two at a time, on both."""
    cluster.add("one")
    cluster.add("two")
    heard: list[Any] = []
    engines = ["healthy", "refuses", "raises", "unreadable"]
    on(cluster, [planned(engine, tmp_path) for engine in engines], tmp_path, heard.append)
    machines = {group(tmp_path, engine).group().machine for engine in engines}  # type: ignore[union-attr]
    assert len(machines) == 2
    assert {event.id for event in heard if isinstance(event, GroupStarted)} == set(engines)


def test_groups_of_one_process_share_their_imports(tmp_path: Path) -> None:
    # Which of its processes runs a group is Ray's to say: this is about one of them.
    folders = [tmp_path / "a", tmp_path / "b"]
    try:
        for folder in folders:
            with node.worker_pool(TimeLimits(), "cpu") as workers:
                group_of = planned("SaysItsParent", folder)
                Runner([group_of], workers=workers, cache=None, on_event=lambda _: None).run()
    finally:
        node.end()
    records = [group(folder, "SaysItsParent").group() for folder in folders]
    parents = {record.identity["parent"] for record in records if record is not None}
    assert len(records) == 2 and len(parents) == 1


def test_doctor_says_what_each_machine_can_run(
    cluster: Nodes, tmp_path: Path, other_nnsight: str
) -> None:
    cluster.add("with", cpus=2)
    cluster.add("without", PYTHONPATH=other_nnsight)
    backends = manifest.load(ROOT / "models.yaml").backends
    with connect(cluster.address) as joined:
        found = {each.subject: each for each in diagnose_cluster(joined.machines, backends)}
    machines = [each for subject, each in found.items() if subject.startswith("machine ")]
    assert sorted(each.ok for each in machines) == [False, True, True]
    assert any("nnsight 0.0.1 instead" in each.state for each in machines)
    assert found["backend vllm-pp2"].ok and not found["backend vllm-pp3"].ok
    assert "has 2 of 3 CPUs" in found["backend vllm-pp3"].state


def test_a_cluster_of_our_own_listens_here_alone_and_to_us_alone() -> None:
    # In a temporary folder of its own: the runs of other tests make and remove theirs meanwhile.
    with tempfile.TemporaryDirectory(prefix="t-") as folder:
        ran = subprocess.run(
            [sys.executable, "-m", "tests.runner.cluster.alone", "listens"],
            cwd=ROOT,
            env={**os.environ, "TMPDIR": folder},
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE,
            check=False,
        )
    assert ran.returncode == 0, ran.stderr
    said = json.loads(ran.stdout.splitlines()[-1])
    assert said["places"] and not any(map(sessions.reached_from_outside, said["places"]))
    assert not said["unmarked"] and not said["told"] and not said["opened"]
    assert said["folders"] > 0
    assert said["stranger"] != 0 and "Unauthenticated" in said["words"]


def _with_a_small_disk(folder: Path, size: str) -> dict[str, Any]:
    """A group that writes much is begun on a node with a disk of this size, beside a larger one."""
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no disk of its own may be mounted here")
    small = folder / "small"
    small.mkdir()
    shell = f'mount -t tmpfs -o size={size} tmpfs {small} && exec "$@"'
    program = [
        sys.executable,
        "-m",
        "tests.runner.cluster.alone",
        "full",
        str(small),
        str(folder / "run"),
    ]
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", shell, "sh", *program],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=2 * PATIENCE,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    said: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    assert said["ok"], said
    assert outcomes(folder / "run", "FillsItsDisk") == dict.fromkeys(CASES, Status.OK)
    return said


def test_a_machine_whose_disk_fills_up_hands_its_group_on(tmp_path: Path) -> None:
    said = _with_a_small_disk(tmp_path, "560m")
    assert "no room any more" in said["words"] and len(said["lost"]) == 1


def test_a_machine_whose_disk_is_full_is_not_asked(tmp_path: Path) -> None:
    said = _with_a_small_disk(tmp_path, "64m")
    assert "has no room" in said["surveyed"] and said["lost"] == []
