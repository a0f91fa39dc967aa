"""Run folders: whole files or none, strict readers, and a cache that trusts no damaged entry."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.errors import ConformanceError
from conformance.runner.store import (
    GroupFolder,
    ObservationCache,
    RunFolder,
    RunPlan,
    ask_versions,
    create_run,
    open_run,
    point_latest,
    read_results,
    read_versions,
)
from conformance.runner.store.files import read_tensors, safe, write_tensors, write_text
from conformance.runner.store.keys import observation_key, scenario_digest
from conformance.spec.records import (
    Backend,
    Case,
    Cell,
    Column,
    Group,
    Job,
    Model,
    Outcome,
    Status,
    Thresholds,
    widened,
)
from tests.faulty_run import job
from tests.known_runs import results

NOW = datetime(2031, 5, 4, 3, 2, 1, tzinfo=UTC)
OK = Outcome(Status.OK, 0.5, prompt_ids=((1, 2),))
TENSORS = {"p0/s0/logits": torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)}


RESULTS = results(cells=())


# --- cells ----------------------------------------------------------------------


def test_a_cell_comes_back_as_it_was_written(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    run.write_cell("llama", "hf", "clean.all", OK, TENSORS)
    assert run.outcome("llama", "hf", "clean.all") == OK
    observed = run.observations("llama", "hf", "clean.all")
    assert observed.keys() == TENSORS.keys()
    assert observed["p0/s0/logits"].dtype is torch.bfloat16
    assert torch.equal(observed["p0/s0/logits"], TENSORS["p0/s0/logits"])
    assert list(run.groups()) == [("llama", "hf")]
    group = run.group_folder("llama", "hf")
    assert group.finished() == ("clean.all",)
    (group.cell("clean.all") / "outcome.json").unlink()
    assert run.outcome("llama", "hf", "clean.all") is None
    assert run.observations("llama", "hf", "clean.all") == {} and group.finished() == ()


def test_views_of_one_storage_and_other_layouts_can_be_kept(tmp_path: Path) -> None:
    whole = torch.arange(12.0).reshape(3, 4)
    tensors = {"whole": whole, "row": whole[1], "turned": whole.T, "scalar": torch.tensor(3)}
    folder = GroupFolder(tmp_path)
    folder.write_cell("a.b", OK, tensors)
    found = folder.observations("a.b")
    assert all(torch.equal(found[name], value) for name, value in tensors.items())


def test_complex_numbers_come_back_as_pairs(tmp_path: Path) -> None:
    numbers = torch.tensor([[1 + 2j, 3 - 4j]])
    path = tmp_path / "observations.safetensors"
    write_tensors(path, {"row": numbers, "one": numbers[0, 1]})
    found = read_tensors(path)
    assert found["row"].tolist() == [[1.0, 2.0, 3.0, -4.0]]
    assert found["one"].tolist() == [3.0, -4.0]


def test_observations_are_there_before_the_outcome(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that dies between the two leaves an unfinished cell, not an empty one."""
    placed: list[str] = []
    replace = Path.replace

    def watch(self: Path, target: Path) -> Path:
        placed.append(Path(target).name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watch)
    GroupFolder(tmp_path).write_cell("a.b", OK, TENSORS)
    assert placed == ["observations.safetensors", "outcome.json"]


def test_a_write_that_fails_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "plan.json"
    write_text(path, "old")

    def full(self: Path, *_: object, **__: object) -> int:
        with self.open("w") as file:
            file.write("ne")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    with pytest.raises(OSError, match="No space"):
        write_text(path, "new")
    assert path.read_text() == "old"


def test_a_finished_cell_without_its_observations_is_an_error(tmp_path: Path) -> None:
    """Damaged files: tests/hostile/test_damaged_files.py."""
    folder = GroupFolder(tmp_path)
    folder.write_cell("a.b", OK, TENSORS)
    path = folder.cell("a.b") / "observations.safetensors"
    path.unlink()
    with pytest.raises(ConformanceError) as caught:
        folder.observations("a.b")
    assert caught.value.path == path and caught.value.remedy


@pytest.mark.parametrize("name", ["", ".", "..", "../up", "a/b", "/etc", ".hidden", "a\0b", "a\n"])
def test_a_name_that_leaves_the_run_is_refused(name: str) -> None:
    with pytest.raises(ConformanceError, match="cannot name a folder"):
        safe(name)


@given(st.text(alphabet=st.sampled_from("abzAZ019_./~+\0 \n"), max_size=6))
def test_a_name_is_refused_or_stays_below(name: str) -> None:
    try:
        kept = safe(name)
    except ConformanceError:
        return
    assert Path(os.path.normpath(Path("run") / kept)).parent == Path("run")


def test_forced_continuations_have_folders_of_their_own() -> None:
    case = Case("multigen", "all", ("a",), forced={"": ((1, 2),)})
    assert safe(case.key) == case.key != dataclasses.replace(case, forced={}).key


# --- runs -----------------------------------------------------------------------


def test_runs_of_one_second_are_told_apart_and_sort_by_time(tmp_path: Path) -> None:
    runs = {create_run(tmp_path, NOW).id for _ in range(20)}
    assert len(runs) == 20
    assert create_run(tmp_path, NOW.replace(second=2)).id > max(runs)
    assert all(re.fullmatch(r"20310504-030201-[0-9a-f]{4}", run) for run in runs)


def test_latest_follows_the_newest_run(tmp_path: Path) -> None:
    first, second = create_run(tmp_path, NOW), create_run(tmp_path, NOW)
    for run in (first, second):
        run.write_plan(RunPlan(run.id, "now", "run", (), (), (), Thresholds()))
        point_latest(run)
        assert open_run(tmp_path).plan().run == run.id
    assert (tmp_path / "latest").readlink() == Path(second.id)
    assert open_run(tmp_path, first.id).plan().run == first.id


def test_what_is_not_there_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match="there is no run 'latest'"):
        open_run(tmp_path)
    with pytest.raises(ConformanceError, match=r"has no plan\.json"):
        RunFolder(tmp_path).plan()
    with pytest.raises(ConformanceError, match="there are no results") as caught:
        RunFolder(tmp_path).results()
    assert "--resume" in caught.value.remedy


def test_the_plan_and_the_results_come_back(tmp_path: Path) -> None:
    run = RunFolder(tmp_path)
    model, column = Model("llama", "llama", ()), Column(Backend("hf", "hf"))
    cells = (Cell("llama", "hf", "clean", "all"),)
    limits = widened(Thresholds(), 2.0)
    plan = RunPlan("r", "now", "conformance run", (model,), (column,), cells, limits)
    run.write_plan(plan)
    assert run.plan() == plan
    run.write_results(RESULTS)
    assert run.results() == RESULTS
    assert list(json.loads((tmp_path / "results.json").read_text()))[-1] == "footer"


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ({"footer": None}, "incomplete: it has no footer"),
        ({"schema": "conformance-results/2"}, "has schema 'conformance-results/2'.*\n.*judge RUN"),
        ({"models": 7}, "holds no valid Results"),
        ({"backends": 7}, "holds no valid Results"),
        ({"model": {"sources": 7}}, "holds no valid Results"),
    ],
)
def test_results_of_another_form_are_refused(
    tmp_path: Path, damage: dict[str, object], words: str
) -> None:
    path = RunFolder(tmp_path).write_results(RESULTS)
    document = json.loads(path.read_text()) | damage
    whole = {key: value for key, value in document.items() if damage.get(key, 7) is not None}
    path.write_text(json.dumps(whole))
    with pytest.raises(ConformanceError, match=words):
        read_results(path)


@given(st.floats(0, 0.999))
def test_results_cut_off_anywhere_are_refused(
    tmp_path_factory: pytest.TempPathFactory, share: float
) -> None:
    run = RunFolder(tmp_path_factory.mktemp("run"))
    path = run.write_results(RESULTS)
    text = path.read_text().rstrip()
    path.write_text(text[: int(share * len(text))])
    with pytest.raises(ConformanceError, match=r"cut off|incomplete"):
        run.results()


# --- the log --------------------------------------------------------------------


def test_the_log_tail_begins_where_the_worker_did(tmp_path: Path) -> None:
    folder = GroupFolder(tmp_path)
    assert folder.log_tail() == ""
    folder.log.write_text("first worker\n")
    start = folder.log_size()
    assert folder.log_tail(start) == ""
    with folder.log.open("a") as log:
        log.write("x" * 20_000 + "\nlast words \N{SNOWMAN}\n")
    assert folder.log_tail(start).endswith("last words \N{SNOWMAN}")
    assert "first worker" not in folder.log_tail(start)
    assert len(folder.log_tail()) <= 8192
    folder.log.write_bytes(b"\xff\xfe broken \x00")
    assert "broken" in folder.log_tail()


# --- the cache ------------------------------------------------------------------


KEY = "k" * 64


def finished(path: Path, status: Status = Status.OK) -> GroupFolder:
    folder = GroupFolder(path)
    folder.write_cell("a.b", dataclasses.replace(OK, status=status), TENSORS)
    folder.write_group(Group("llama", "hf", layout="single"))
    return folder


@pytest.fixture
def cache(tmp_path: Path) -> ObservationCache:
    """With one observation, of a run in `one`."""
    cache = ObservationCache(tmp_path / "cache")
    assert cache.keep(KEY, finished(tmp_path / "one"), "a.b")
    return cache


def test_an_observation_is_taken_from_the_cache_and_stands_without_it(
    tmp_path: Path, cache: ObservationCache
) -> None:
    other = GroupFolder(tmp_path / "two")
    assert cache.fetch("l" * 64, other, "a.b") is None
    assert other.outcome("a.b") is None
    group = cache.fetch(KEY, other, "a.b")
    assert group is not None
    assert group.layout == "single"
    shutil.rmtree(cache.folder)
    assert other.outcome("a.b") == OK
    assert torch.equal(other.observations("a.b")["p0/s0/logits"], TENSORS["p0/s0/logits"])


@pytest.mark.parametrize("status", [status for status in Status if status is not Status.OK])
def test_only_observations_are_kept(tmp_path: Path, status: Status) -> None:
    cache = ObservationCache(tmp_path / "cache")
    assert not cache.keep(KEY, finished(tmp_path / "one", status), "a.b")
    assert cache.fetch(KEY, GroupFolder(tmp_path / "two"), "a.b") is None


@pytest.mark.parametrize(
    "name", ["outcome.json", "observations.safetensors", "group.json", "digests.json"]
)
@pytest.mark.parametrize("how", ["flip", "cut", "gone"])
def test_a_damaged_entry_is_dropped(
    tmp_path: Path, cache: ObservationCache, name: str, how: str
) -> None:
    path = cache.entry(KEY) / name
    content = path.read_bytes()
    if how == "gone":
        path.unlink()
    elif how == "cut":
        path.write_bytes(content[:-2])
    else:
        path.write_bytes(content[:-2] + bytes([content[-2] ^ 1]) + content[-1:])
    other = GroupFolder(tmp_path / "two")
    assert cache.fetch(KEY, other, "a.b") is None
    assert other.outcome("a.b") is None
    assert not cache.entry(KEY).exists()
    assert cache.keep(KEY, finished(tmp_path / "three"), "a.b")
    assert cache.fetch(KEY, other, "a.b") is not None


def test_a_file_edited_in_a_run_spoils_no_other_run(
    tmp_path: Path, cache: ObservationCache
) -> None:
    with (GroupFolder(tmp_path / "one").cell("a.b") / "observations.safetensors").open(
        "r+b"
    ) as file:
        file.seek(-1, os.SEEK_END)
        file.write(b"\x7f")
    assert cache.fetch(KEY, GroupFolder(tmp_path / "two"), "a.b") is None


# --- keys -----------------------------------------------------------------------

JOB = job("healthy", Path("/run"), cases=("all",))
[CASE] = JOB.cases


def key(job: Job = JOB, case: Case = CASE, **changed: object) -> str:
    what = {"surroundings": {"torch": "2"}, "device": "cpu", "scenario": "s", "sources": "e"}
    return observation_key(job, case, **{**what, **changed})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "other",
    [
        key(dataclasses.replace(JOB, digest="decaf")),
        key(dataclasses.replace(JOB, engine="m:g")),
        key(dataclasses.replace(JOB, column=Column(Backend("hf", "hf", options={"a": "eager"})))),
        key(dataclasses.replace(JOB, expect={"stages": 2})),
        key(dataclasses.replace(JOB, model=Model("llama", "llama", (), layout="single"))),
        key(case=dataclasses.replace(CASE, layers={"at": 4})),
        key(case=dataclasses.replace(CASE, prompts=("a", "c"))),
        key(case=dataclasses.replace(CASE, active=False)),
        key(case=dataclasses.replace(CASE, forced={"": ((1,), (2,))})),
        key(surroundings={"torch": "3"}),
        key(surroundings={"torch": "2", "vllm": "1"}),
        key(device="cuda"),
        key(scenario="t"),
        key(sources="f"),
    ],
)
def test_whatever_can_change_an_observation_changes_its_key(other: str) -> None:
    assert other != key()


def test_where_a_run_lies_does_not_change_a_key() -> None:
    elsewhere = dataclasses.replace(JOB, folder=Path("/other"), checkpoint=Path("/two"))
    assert key(elsewhere) == key()


def test_a_scenario_is_keyed_by_its_file_and_by_what_files_share(tmp_path: Path) -> None:
    (tmp_path / "one.py").write_text("1")
    (tmp_path / "two.py").write_text("2")
    before = scenario_digest(tmp_path, "one")
    (tmp_path / "two.py").write_text("3")
    assert scenario_digest(tmp_path, "one") == before
    (tmp_path / "_shared.py").write_text("4")
    shared = scenario_digest(tmp_path, "one")
    assert shared != before
    (tmp_path / "one.py").write_text("5")
    other = scenario_digest(tmp_path, "one")
    assert other != shared
    (tmp_path / "vectors.safetensors").write_bytes(b"6")
    assert scenario_digest(tmp_path, "one") != other


def test_an_interpreter_is_asked_for_its_versions(tmp_path: Path) -> None:
    found = read_versions()
    assert found["torch"] == metadata.version("torch")  # which may leave `+cu130` out
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho \'{"python": "3.9", "torch": "1.0"}\'\n')
    python.chmod(0o755)
    assert ask_versions(python) == {"python": "3.9", "torch": "1.0"}
    with pytest.raises(ConformanceError, match="does not say its versions"):
        ask_versions(tmp_path / "no-such-python")
