"""The parts of a run on a cluster that need no cluster."""

from __future__ import annotations

import dataclasses
import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.report.layouts_and_versions import machines as told
from conformance.runner.cluster import machines, node, parse_address, upload
from conformance.runner.cluster.machines import Machine
from conformance.runner.cluster.messages import FilePiece
from conformance.runner.cluster.sync import PIECE, Arriving, FileSync
from conformance.runner.planning import machine
from conformance.runner.scheduling.reuse import most_finished
from conformance.runner.store import GroupFolder
from conformance.spec import checkpoints
from conformance.spec.builtin.one_layer import ONE_LAYER
from conformance.spec.checkpoints import CheckpointShape
from conformance.spec.records import Backend, Case, Group, Outcome, Status
from tests.faulty_run import job

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("ray", ""),
        ("ray://head:10001", "ray://head:10001"),
        ("10.0.0.1:6379", "10.0.0.1:6379"),
        ("ray://[::1]:10001", "ray://[::1]:10001"),
    ],
)
def test_what_may_be_named(text: str, place: str) -> None:
    assert parse_address(text).place == place


@pytest.mark.parametrize(
    "text", ["", "slurm", "ray:", "ray://", "head", "http://a:1", "a:b", "-x:1"]
)
def test_what_names_no_cluster_is_refused(text: str) -> None:
    with pytest.raises(ConformanceError, match="names no cluster"):
        parse_address(text)


def test_without_ray_the_remedy_is_told(tmp_path: Path) -> None:
    absent = tmp_path / "ray"
    absent.mkdir()
    (absent / "__init__.py").write_text("raise ImportError('no such thing')")
    path = os.pathsep.join([str(tmp_path), str(ROOT), os.environ.get("PYTHONPATH", "")])
    for verb in (["run", "-m", "llama", "--reports", str(tmp_path / "reports")], ["doctor"]):
        ran = subprocess.run(
            [sys.executable, "-m", "conformance", *verb, "--on", "ray"],
            env={**os.environ, "PYTHONPATH": path},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )
        assert ran.returncode == 2, ran.stderr
        assert "pip install 'conformance[ray]'" in ran.stderr
    assert not (tmp_path / "reports").exists()


def test_a_group_needs_what_its_ranks_need() -> None:
    two = machines.needs_of(Backend("b", "vllm", pipeline=2, tensor=2), 1 << 30, gpus=False)
    assert (two.cpus, two.gpus) == (4, 0)
    assert machines.needs_of(Backend("b", "vllm", pipeline=2), 0, gpus=True).gpus == 2
    small, large = (
        machines.needs_of(Backend("b", "hf"), weights, gpus=False) for weights in (0, 10**9)
    )
    assert large.memory - small.memory == 3 * 10**9
    assert machines.needs_of(Backend("r", "reference"), 10**9, gpus=False).memory > large.memory


def test_what_a_machine_has_too_little_of_is_said() -> None:
    wanted = machines.Needs(cpus=2, gpus=1, memory=3 << 30)
    assert wanted.lacking({"CPU": 2.0, "GPU": 1.0, "memory": 4.0 * (1 << 30)}) == ""
    assert wanted.lacking({"CPU": 1.0, "memory": 1.5 * (1 << 30)}) == (
        "has 1 of 2 CPUs, 0 of 1 GPUs, 1.5 of 3 GiB of memory"
    )


def test_nowhere_says_of_each_machine_why() -> None:
    wanted = machines.Needs(cpus=2, gpus=0, memory=0)
    some = [
        Machine("1", "one", {"CPU": 1}),
        Machine("2", "two", {"CPU": 8}, cannot="has no room"),
        Machine("3", "three", {"CPU": 8}),
    ]
    assert machines.explain(wanted, some, {}) == ""
    assert machines.explain(wanted, some, {"3": "was lost"}) == (
        "no machine of the cluster can run it: one has 1 of 2 CPUs; two has no room; three was lost"
    )
    assert machines.explain(wanted, [], {}).endswith("there is none")


def test_machines_of_one_host_have_names_of_their_own() -> None:
    some = [Machine("aaaaaa1", "host", {}), Machine("bbbbbb2", "host", {}), Machine("c", "x", {})]
    names = [each.name for each in machines.distinguish(some)]
    assert names == ["host#aaaaaa", "host#bbbbbb", "x"]


def test_environments_are_compared_in_words() -> None:
    wanted = {"torch": "2", "nnsight": "1"}
    assert node.compare_versions(wanted, {"torch": "2", "nnsight": "1"}) == ""
    words = node.compare_versions(wanted, {"torch": "3", "vllm": "9"})
    assert "torch 3 instead of 2" in words and "nnsight missing instead of 1" in words
    assert "vllm 9, which the run has not" in words


def test_a_disk_without_room_is_known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert node.find_full_disk(tmp_path / "not" / "there") == ""
    monkeypatch.setattr(node, "ROOM_MIB", 1 << 40)
    assert "has no room" in node.find_full_disk(tmp_path)
    assert "no room any more" in node.explain_disk_error(OSError(errno.ENOSPC, "full"))
    assert node.explain_disk_error(OSError(errno.EACCES, "not yours")) == ""


def test_a_disk_that_filled_up_is_known_by_its_cells(tmp_path: Path) -> None:
    folder = GroupFolder(tmp_path)
    folder.write_cell("a.b", Outcome(Status.ERROR, reason="an engine's own"), {})
    assert node.find_disk_error(folder) == ""
    reason = "OSError: [Errno 28] No space left on device"
    folder.write_cell("a.c", Outcome(Status.ERROR, reason=reason), {})
    assert reason in node.find_disk_error(folder)


def test_variables_of_arithmetic_are_those_of_home() -> None:
    there = {"OMP_NUM_THREADS": "8", "MKL_X": "1", "PATH": "/bin"}
    machine.set_arithmetic({"OMP_NUM_THREADS": "1"}, there)
    assert there == {"OMP_NUM_THREADS": "1", "PATH": "/bin"}
    assert machine.read_variables(there) == {"OMP_NUM_THREADS": "1"}


def _sealed(folder: Path) -> checkpoints.Checkpoint:
    folder.mkdir(parents=True)
    (folder / "model.safetensors").write_bytes(bytes(1000))
    checkpoints.seal(folder, "made here", "llama", CheckpointShape(1, 1))
    found = checkpoints.find_checkpoint(folder)
    assert found is not None
    return found


def test_a_checkpoint_travels_once_and_is_found_where_it_is(tmp_path: Path) -> None:
    made = _sealed(tmp_path / "home" / "checkpoints" / "m-1")
    pieces: list[bytes] = []
    packed = upload.pack(made.path, lambda piece: pieces.append(piece) or len(pieces) - 1)
    taken: list[int] = []

    def get(number: int) -> bytes:
        taken.append(number)
        return pieces[number]

    cache = tmp_path / "node"
    assert upload.checkpoint(made.path, made.digest, packed, cache, get) == made.path
    assert taken == []
    gone = tmp_path / "elsewhere" / "m-1"
    first = upload.checkpoint(gone, made.digest, packed, cache, get)
    there = checkpoints.find_checkpoint(first)
    assert first == cache / "checkpoints" / "m-1" and there is not None
    assert there.digest == made.digest and taken
    taken.clear()
    assert upload.checkpoint(gone, made.digest, packed, cache, get) == first and taken == []


def test_a_checkpoint_that_came_in_part_is_refused(tmp_path: Path) -> None:
    made = _sealed(tmp_path / "home" / "m-1")
    packed = upload.pack(made.path, lambda piece: piece)
    packed["files"] = [file for file in packed["files"] if file[0] != "model.safetensors"]
    with pytest.raises(ConformanceError, match="is incomplete"):
        upload.checkpoint(tmp_path / "gone", "x", packed, tmp_path / "node", lambda piece: piece)
    assert not list((tmp_path / "node" / "checkpoints").glob("[!.]*"))


def test_no_file_is_unpacked_elsewhere(tmp_path: Path) -> None:
    packed = {"path": "x", "files": [("../out", 0, [b"x"])]}
    with pytest.raises(ValueError, match="would lie elsewhere"):
        upload.unpack(packed, tmp_path / "in", lambda piece: piece)
    assert not (tmp_path / "out").exists()


def test_a_job_reads_what_came_with_it(tmp_path: Path) -> None:
    observed = tmp_path / "cells" / "observations.safetensors"
    plain = job("healthy", tmp_path)
    case = Case(ONE_LAYER.name, "alone", ("a",), observed=str(observed))
    plain = dataclasses.replace(plain, cases=(*plain.cases, case), probe=tmp_path / "probe")
    assert set(upload.places(plain)) == {plain.scenarios, tmp_path / "probe", observed}
    where = {path: Path("/there") / path.name for path in (*upload.places(plain), plain.checkpoint)}
    moved = upload.move_inputs(plain, where)
    assert moved.probe == Path("/there/probe")
    assert moved.scenarios == Path("/there/faulty_scenarios")
    assert moved.cases[-1].observed == "/there/observations.safetensors"
    assert moved.cases[:-1] == plain.cases[:-1]


def test_what_a_group_writes_comes_home_as_it_is(tmp_path: Path) -> None:
    away, home = tmp_path / "away", tmp_path / "home"
    there = GroupFolder(away)
    home.mkdir()
    (home / "log.txt").write_text("before\n")
    parts: list[FilePiece] = []
    arriving = Arriving(home)

    def send(part: FilePiece) -> None:
        parts.append(part)
        arriving.take(part)

    with FileSync(away, send) as sending:
        away.mkdir()
        there.log.write_text("first\n")
        sending.look()
        there.write_cell("a.b", Outcome(Status.OK), {})
        large = there.cell("a.b") / "observations.safetensors"
        large.write_bytes(os.urandom(2 * PIECE + 5))
        with there.log.open("a") as log:
            log.write("second\n")
        there.write_group(Group("m", "b"))
        (away / "keys.json").write_text("{}")
    assert (home / "log.txt").read_text() == "before\nfirst\nsecond\n"
    copied = GroupFolder(home)
    assert copied.group() == Group("m", "b") and copied.outcome("a.b") == Outcome(Status.OK)
    assert (home / "cells/a.b/observations.safetensors").read_bytes() == large.read_bytes()
    assert not (home / "keys.json").exists()
    order = [part.path for part in parts if part.last and part.path.startswith("cells/")]
    assert order.index("cells/a.b/observations.safetensors") < order.index("cells/a.b/outcome.json")
    assert not list(home.rglob("*.part"))


def test_half_a_file_is_no_file(tmp_path: Path) -> None:
    arriving = Arriving(tmp_path)
    arriving.take(FilePiece("cells/a.b/observations.safetensors", 0, b"half", last=False))
    assert not (tmp_path / "cells/a.b/observations.safetensors").exists()


@pytest.mark.parametrize(
    "path",
    ["../out", "/etc/passwd", "cells/../../out", "keys.json", "cells/a/b/outcome.json", "x.py"],
)
def test_a_machine_writes_nothing_else_at_home(path: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no group has a file"):
        Arriving(tmp_path / "group").take(FilePiece(path, 0, b"x"))
    assert list(tmp_path.rglob("*")) == [tmp_path / "group"]


def test_a_machine_writes_through_no_link(tmp_path: Path) -> None:
    """As a folder may have that comes from elsewhere and is gone on with."""
    outside, home = tmp_path / "outside", tmp_path / "group"
    (home / "cells").mkdir(parents=True)
    outside.mkdir()
    (outside / "kept").write_text("kept")
    (home / "cells" / "a.b").symlink_to(outside)
    (home / "log.txt").symlink_to(outside / "kept")
    arriving = Arriving(home)
    with pytest.raises(ValueError, match="lies elsewhere"):
        arriving.take(FilePiece("cells/a.b/outcome.json", 0, b"{}"))
    with pytest.raises(OSError, match="symbolic links"):
        arriving.take(FilePiece("log.txt", 0, b"theirs", grows=True))
    assert [path.name for path in outside.iterdir()] == ["kept"]
    assert (outside / "kept").read_text() == "kept"


def test_a_file_of_a_machine_is_as_long_as_what_it_sends(tmp_path: Path) -> None:
    arriving = Arriving(tmp_path)
    for part in (
        FilePiece("log.txt", 1 << 40, b"x", grows=True),
        FilePiece("log.txt", -1, b"x", grows=True),
        FilePiece("cells/a.b/outcome.json", 5, b"x"),
    ):
        with pytest.raises(ValueError, match="is missing before"):
            arriving.take(part)
    with pytest.raises(ValueError, match="is missing before"):
        arriving.take(FilePiece("group.json", 5, b"x", grows=True))
    assert sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()) == 0


def test_what_was_finished_on_one_kind_of_machine_goes_on_there(tmp_path: Path) -> None:
    folder = GroupFolder(tmp_path)
    folder.write_keys({"a": "a on two", "b": "b on two", "c": "c on one"})
    keys = {kind: {case: f"{case} on {kind}" for case in "abc"} for kind in ("one", "two")}
    assert most_finished(folder, keys, None) == "two"


def test_the_page_says_which_machine_ran_what() -> None:
    groups = [
        Group("llama", "hf", machine="one"),
        Group("llama", "reference", machine="two", lost=("one",)),
        Group("gpt2", "hf"),
    ]
    assert told(groups) == [
        ("one", "llama hf, llama reference (begun)"),
        ("two", "llama reference"),
    ]
    assert told([Group("gpt2", "hf")]) == []
