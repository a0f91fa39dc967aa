"""The runner against engines that are wrong on purpose: each is recorded as what it is,
and nobody else is harmed.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest

from conformance.errors import ConformanceError
from conformance.runner.processes import sessions
from conformance.runner.scheduling import (
    CellFinished,
    CellStarted,
    Event,
    GroupFinished,
    GroupLoaded,
    GroupStarted,
    Launch,
    Planned,
    RunSummary,
    TimeLimits,
    WorkerDied,
    local,
    loop,
    run,
    zygotes,
)
from conformance.runner.scheduling.group import GroupRun
from conformance.runner.store import ObservationCache
from conformance.spec.records import Group, Outcome, Status
from tests import faulty_run
from tests.faulty_run import (
    CASES,
    LIMITS,
    SCENARIOS,
    group,
    job,
    noted,
    outcome_of,
    planned,
    refusing,
)
from tests.patience import PATIENCE, wait_until

ROOT = Path(__file__).parents[3]

#: How the cell `bad` of an engine ends, and how all cells of an engine that does not serve.
CELLS = [
    ("healthy", Status.OK, r""),
    ("crashes_once", Status.OK, r""),
    ("aborts", Status.CRASH, r"ended by SIGABRT while running plain\.bad"),
    ("hangs", Status.TIMEOUT, r"no outcome within 4 s"),
    ("hangs_with_children", Status.TIMEOUT, r"no outcome within 4 s"),
    ("hangs_in_a_stage", Status.TIMEOUT, r"no outcome within 4 s"),
    ("exits", Status.MISSING, r"exit status 0 while running plain\.bad"),
    ("exits_politely", Status.MISSING, r"exit status 0 while running plain\.bad"),
    ("raises", Status.ERROR, r"ValueError: shapes \[3, 8\] and \[4, 8\] do not fit"),
    ("refuses", Status.UNSUPPORTED, r"does not support pipeline parallelism"),
    ("unreadable", Status.STRUCTURE, r"dual is off by 0\.7, single by 0\.9"),
    ("sees_nothing", Status.UNKNOWN, r"nothing was observed"),
    ("returns_no_tensors", Status.ERROR, r".*str.*"),
    ("EngineWithProcess", Status.CRASH, r"a process of the engine ended.*core is gone"),
    ("HangsInClose", Status.OK, r""),
    ("LeavesChildren", Status.OK, r""),
]
GROUPS = [
    ("does_not_start", Status.ERROR, r"RuntimeError: the engine core could not be initiali"),
    ("refuses_to_start", Status.UNSUPPORTED, r"SupportsPP is not implemented"),
    ("refuses_elsewhere", Status.UNSUPPORTED, r"^NotImplementedError: Pipeline parallelism is"),
    ("hangs_in_load", Status.TIMEOUT, r"did not load within 6 s"),
    ("aborts_in_load", Status.CRASH, r"ended by SIGABRT while loading"),
    ("exits_in_load", Status.ERROR, r"did not start: .* exit status 3 while loading"),
    ("LiesAboutItself", Status.UNKNOWN, r"stages is 2, expected 1"),
    ("no_such_engine", Status.ERROR, r"no attribute 'no_such_engine'"),
]
#: Who is put into one run together, with the expectations given to some.
WARD = (*(row[0] for row in (*CELLS, *GROUPS)), "cannot_be_written", "LeavesSharedMemory")


@dataclass(frozen=True)
class Ward:
    folder: Path
    summary: RunSummary
    events: tuple[Event, ...]
    left: tuple[int, ...]
    orphans: dict[str, int]

    def outcome(self, engine: str, case: str) -> Outcome:
        return outcome_of(self.folder, engine, case)

    def deaths(self, engine: str) -> list[WorkerDied]:
        return [one for one in self.events if isinstance(one, WorkerDied) and one.id == engine]

    def group(self, engine: str) -> Group:
        found = group(self.folder, engine).group()
        assert found is not None
        return found


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> str:
    """A variable that every process of this test inherits."""
    value = uuid.uuid4().hex
    monkeypatch.setenv("CONFORMANCE_TEST_MARK", value)
    return value


def survivors(value: str) -> set[int]:
    """Living processes that carry the mark, but for this one."""
    carry = {
        pid for pid in psutil.pids() if sessions.variable(pid, "CONFORMANCE_TEST_MARK") == value
    }
    return set(filter(sessions.is_alive, carry)) - {os.getpid()}


def started_for(path: str) -> int:
    """How many living processes have this path on their command line."""
    found = 0
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            found += any(path in word for word in process.cmdline())
    return found


@pytest.fixture(scope="module")
def ward(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ward]:
    """Everyone in one run, so that whoever harms another is found out."""
    folder = tmp_path_factory.mktemp("ward")
    value = uuid.uuid4().hex
    os.environ["CONFORMANCE_TEST_MARK"] = value
    events: list[Event] = []
    orphans: dict[str, int] = {}

    def told(event: Event) -> None:
        events.append(event)
        if isinstance(event, GroupFinished):
            orphans[event.id] = started_for(f"{folder}/left/{event.id}/deaf")

    def plan(engine: str) -> Planned:
        own = folder / "left" / engine
        own.mkdir(parents=True)
        return planned(
            engine,
            folder,
            launch=Launch(preload="torch"),
            options={"folder": str(own)},
            expect={"stages": 1} if engine in {"healthy", "LiesAboutItself"} else {},
            cached=True,
        )

    try:
        summary = run(
            [plan(engine) for engine in WARD],
            logs=folder / "logs",
            jobs=12,
            limits=LIMITS,
            cache=ObservationCache(folder / "cache"),
            on_event=told,
        )
        yield Ward(folder, summary, tuple(events), tuple(survivors(value)), orphans)
    finally:
        del os.environ["CONFORMANCE_TEST_MARK"]


# --- each is recorded as what it is ----------------------------------------------


@pytest.mark.parametrize(("engine", "status", "reason"), CELLS)
def test_a_cell_is_recorded_as_what_it_is(
    ward: Ward, engine: str, status: Status, reason: str
) -> None:
    outcome = ward.outcome(engine, "bad")
    assert outcome.status is status
    assert re.search(reason, outcome.reason)
    for other in ("first", "last"):
        assert ward.outcome(engine, other).status is Status.OK, f"{other} was harmed"
    assert ward.group(engine).status is Status.OK


@pytest.mark.parametrize(("engine", "status", "reason"), GROUPS)
def test_an_engine_that_does_not_serve_is_the_reason_of_all_its_cells(
    ward: Ward, engine: str, status: Status, reason: str
) -> None:
    found = ward.group(engine)
    assert found.status is status
    assert re.search(reason, found.reason)
    for case in CASES:
        outcome = ward.outcome(engine, case)
        assert outcome.status is status
        assert re.search(reason, outcome.reason)
    assert not ward.summary.done[engine].ok


@pytest.mark.parametrize(
    ("engine", "words"),
    [
        ("does_not_start", "the engine core could not be init"),
        ("aborts", "the kernel found a bad shape"),
        ("hangs", "in hangs"),
        ("hangs_in_load", "in hangs_in_load"),
        ("hangs_in_a_stage", "in hangs_in_a_stage"),
        ("hangs_in_a_stage", "in _the_stage_hangs_here"),
        ("cannot_be_written", "No space left on device"),
    ],
)
def test_an_engines_last_words_are_kept_or_where_it_hangs(
    ward: Ward, engine: str, words: str
) -> None:
    assert words in ward.outcome(engine, "bad").detail


def test_a_shutdown_that_hangs_is_told_and_harms_no_cell(ward: Ward) -> None:
    found = ward.group("HangsInClose")
    assert found.status is Status.OK
    assert found.reason == "after its last cell: the engine did not shut down within 1.5 s"
    assert "in close" in found.log_tail
    assert "no kernel image for this device" in ward.group("does_not_start").log_tail


def test_our_own_failures_are_not_the_engines(ward: Ward) -> None:
    assert ward.outcome("returns_no_tensors", "bad").harness
    full = ward.outcome("cannot_be_written", "bad")
    assert full.status is Status.ERROR
    assert full.harness
    assert "the worker itself failed while running plain.bad" in full.reason
    assert ward.outcome("cannot_be_written", "last").status is Status.OK
    for engine in ("raises", "aborts", "hangs", "exits", "does_not_start"):
        assert not ward.outcome(engine, "bad").harness


def test_a_cell_is_tried_twice_and_the_others_once(ward: Ward) -> None:
    for engine in ("aborts", "hangs", "exits"):
        assert sorted(noted(ward.folder, engine)) == ["bad", "bad", "first", "last"]
        assert ward.group(engine).starts == 3
    assert noted(ward.folder, "healthy") == list(CASES)
    assert ward.group("healthy").starts == 1


def test_no_cell_meets_an_engine_that_has_raised(ward: Ward) -> None:
    assert noted(ward.folder, "raises") == ["first", "bad", "last"]
    assert ward.group("raises").starts == 2


@pytest.mark.parametrize("engine", ["hangs_with_children", "LeavesChildren"])
def test_what_an_engine_started_ends_with_its_group(ward: Ward, engine: str) -> None:
    """Not only with the run: another group needs the cores and the memory."""
    started = list((ward.folder / "left" / engine).glob("deaf-*"))
    assert len(started) == 2, "it started none: nothing was tried"
    assert ward.orphans[engine] == 0
    assert ward.left == ()


def test_no_shared_memory_is_left_behind(ward: Ward) -> None:
    events = group(ward.folder, "LeavesSharedMemory").events.read_text().splitlines()
    names = [name for line in events for name in json.loads(line).get("shared", ())]
    mine = [name for name in names if "conformance-" in name]
    assert len(mine) == 3, "one for each worker"
    assert not any(Path(name).exists() for name in mine)


def test_a_group_says_what_it_was_and_what_it_observed(ward: Ward) -> None:
    observed = group(ward.folder, "healthy").observations("plain.first")
    assert set(observed) == {"p0/s0/logits", "p1/s0/logits"}
    assert ward.outcome("healthy", "first").prompt_ids == ((1, 2, 0), (1, 2, 1))
    found = ward.group("healthy")
    assert found.identity == {"stages": 1, "eager": True}
    assert found.versions["torch"] and not found.reused
    assert found.peak_mib > 50
    assert 0 < found.load_seconds < found.seconds


def test_the_display_is_told_the_whole_story(ward: Ward) -> None:
    def told(engine: str) -> list[Event]:
        return [event for event in ward.events if event.id == engine]

    kinds = [type(event) for event in told("healthy")]
    cell = [CellStarted, CellFinished]
    assert kinds == [GroupStarted, GroupLoaded, *cell, *cell, *cell, GroupFinished]
    deaths = [(death.case, death.status) for death in ward.deaths("aborts")]
    assert deaths == 2 * [("plain.bad", Status.CRASH)]
    for engine in WARD:
        done = [event.case for event in told(engine) if isinstance(event, CellFinished)]
        assert sorted(done) == sorted(f"plain.{case}" for case in CASES)


def test_a_cell_says_how_long_it_took_and_the_summary_counts(ward: Ward) -> None:
    assert 4 <= ward.outcome("hangs", "bad").seconds < PATIENCE
    assert 0 < ward.outcome("aborts", "bad").seconds < PATIENCE
    assert ward.outcome("does_not_start", "bad").seconds == 0
    summary = ward.summary
    assert (summary.finished, summary.resumed) == (len(WARD) * len(CASES), 0)
    assert not summary.interrupted
    assert summary.peak_mib > 100


# --- what was finished is not run again -------------------------------------------


def again(
    folder: Path, engine: str, *, cache: Path | None = None, **more: object
) -> tuple[RunSummary, list[Event]]:
    events: list[Event] = []
    summary = run(
        [planned(engine, folder, cached=cache is not None, **more)],
        logs=folder / "logs",
        limits=TimeLimits(close=LIMITS.close),  # some engines here leave what nobody ends
        cache=ObservationCache(cache) if cache is not None else None,
        on_event=events.append,
    )
    return summary, events


def test_the_cache_gives_what_another_run_observed(ward: Ward, tmp_path: Path) -> None:
    own = {**job("healthy", ward.folder).backend.options}
    own["folder"] = str(ward.folder / "left" / "healthy")
    same = {"options": own, "expect": {"stages": 1}}
    launch = Launch(preload="torch")
    summary, events = again(tmp_path, "healthy", cache=ward.folder / "cache", launch=launch, **same)
    assert summary.resumed == len(CASES)
    assert not any(isinstance(event, GroupStarted) for event in events)
    found = group(tmp_path, "healthy")
    assert set(found.observations("plain.last")) == {"p0/s0/logits", "p1/s0/logits"}
    record = found.group()
    assert record is not None and record.reused
    assert record.identity == {"stages": 1, "eager": True}
    # From now on it is this run's own.
    summary, _ = again(tmp_path, "healthy", **same)
    assert (summary.finished, summary.resumed) == (0, len(CASES))


def test_a_finished_cell_is_run_again_when_its_scenario_has_changed(tmp_path: Path) -> None:
    scenarios = tmp_path / "changing_scenarios"
    shutil.copytree(SCENARIOS, scenarios, ignore=shutil.ignore_patterns("__pycache__"))
    refusing = {"options": {"refuse": True}, "scenarios": scenarios}
    assert again(tmp_path, "healthy", **refusing)[0].finished == 3
    assert again(tmp_path, "healthy", **refusing)[0].resumed == 3
    assert noted(tmp_path, "healthy") == list(CASES)
    with (scenarios / "plain.py").open("a") as file:
        file.write("# changed\n")
    summary, _ = again(tmp_path, "healthy", **refusing)
    assert (summary.finished, summary.resumed) == (3, 0)
    assert noted(tmp_path, "healthy") == 2 * list(CASES)


def test_a_damaged_outcome_is_made_again(tmp_path: Path) -> None:
    again(tmp_path, "healthy", options={"refuse": True})
    folder = group(tmp_path, "healthy")
    (folder.cell("plain.bad") / "outcome.json").write_text("{")
    summary, _ = again(tmp_path, "healthy", options={"refuse": True})
    assert (summary.finished, summary.resumed) == (1, 2)
    assert noted(tmp_path, "healthy") == [*CASES, "bad"]


@dataclass(frozen=True)
class Lost:
    """A group whose engine has lost a process, in a folder of its own."""

    folder: Path
    engine: str
    events: Sequence[Event]

    @property
    def deaths(self) -> list[WorkerDied]:
        name = self.folder.name
        return [one for one in self.events if isinstance(one, WorkerDied) and one.id == name]

    @property
    def first(self) -> Outcome:
        return outcome_of(self.folder, self.engine, "first")


#: Who loses a process, by which signal, in how many loads, and which cases it has.
LOSING = [
    ("LosesAProcessInLoad", "KILL", 1, CASES),
    ("LosesAProcessInLoad", "KILL", 1, ()),
    ("LosesAProcessInProbe", "KILL", 1, CASES),
    ("LosesAProcessUnseen", "HUP", 1, CASES),
    ("LosesAProcessUnseen", "TERM", 1, CASES),
    ("LosesAHelper", "", 0, CASES),
    ("EndsWhenTold", "", 0, CASES),
    ("EndsItsProcessesInLoad", "", 0, CASES),
    *(
        (engine, number, kills, CASES)
        for engine in ("LosesAProcessInLoad", "LosesAProcessInProbe")
        for number in ("ABRT", "SEGV", "")
        for kills in (1, 9)
    ),
]
LostGroups = dict[tuple[str, str, int, Sequence[str]], Lost]


@pytest.fixture(scope="module")
def lost(tmp_path_factory: pytest.TempPathFactory) -> LostGroups:
    """All of them in one run."""
    folder = tmp_path_factory.mktemp("losing")
    events: list[Event] = []
    found = {}
    plan = []
    for engine, number, kills, cases in LOSING:
        own = folder / f"{engine}-{number}-{kills}-{len(cases)}"
        own.mkdir()
        (own / "kills").write_text(str(kills))
        one = planned(engine, own, options={"refuse": True, "signal": number}, cases=cases)
        plan.append(dataclasses.replace(one, id=own.name))
        found[engine, number, kills, cases] = Lost(own, engine, events)
    limits = TimeLimits(close=LIMITS.close)  # some engines here leave what nobody ends
    run(plan, logs=folder / "logs", jobs=4, limits=limits, on_event=events.append)
    return found


@pytest.mark.parametrize(("engine", "cases"), [(each[0], each[3]) for each in LOSING[:3]])
def test_a_load_that_somebody_kills_is_tried_again(
    lost: LostGroups, engine: str, cases: tuple[str, ...]
) -> None:
    found = lost[engine, "KILL", 1, cases]
    [death] = found.deaths
    assert death.status is Status.CRASH
    assert re.search(r"was ended from outside by SIGKILL; then RuntimeError: ", death.reason)
    assert noted(found.folder, engine) == list(cases)


@pytest.mark.parametrize("engine", ["LosesAProcessInLoad", "LosesAProcessInProbe"])
@pytest.mark.parametrize(
    ("signal", "words"),
    [
        ("ABRT", r"Fatal Python error: Aborted; then RuntimeError: .*'EngineCore_0': -6"),
        ("SEGV", r"Fatal Python error: Segmentation fault; then RuntimeError: .*: -11"),
        # It went in order, and nobody says why.
        ("", r"while loading: RuntimeError: Engine core initialization failed"),
    ],
)
def test_a_load_in_which_a_process_is_lost_is_tried_once_more(
    lost: LostGroups, engine: str, signal: str, words: str
) -> None:
    """One crash may be anybody's; one in every load is what the engine does, in its own words."""
    once, always = (lost[engine, signal, kills, CASES] for kills in (1, 9))
    assert once.first.status is Status.UNSUPPORTED
    [death] = once.deaths
    assert re.search(words, death.reason)
    assert (always.first.status, always.first.outside) == (Status.ERROR, False)
    assert always.first.reason.startswith("RuntimeError: Engine core initialization failed")
    assert len(always.deaths) == 1
    assert (always.folder / "kills").read_text() == "7"


@pytest.mark.parametrize("signal", ["HUP", "TERM"])
def test_a_process_that_ends_as_the_load_does_is_missed_in_the_first_cell(
    lost: LostGroups, signal: str
) -> None:
    found = lost["LosesAProcessUnseen", signal, 1, CASES]
    assert found.first.status is Status.UNSUPPORTED
    [death] = found.deaths
    assert f"while running plain.{CASES[0]}: RuntimeError: EngineDeadError" in death.reason
    assert sorted(noted(found.folder, found.engine)) == sorted(CASES)


def test_an_error_is_not_the_end_of_a_process_that_only_helped(lost: LostGroups) -> None:
    """Seen on CUDA with nnsight-serve, whose known errors were crashes once in three."""
    found = lost["LosesAHelper", "", 0, CASES]
    assert found.deaths == []
    assert (found.first.status, found.first.outside) == (Status.ERROR, False)
    assert found.first.reason.startswith("RuntimeError: ValueError: save()")


def test_a_cell_whose_engine_is_told_to_end_is_run_again(lost: LostGroups) -> None:
    found = lost["EndsWhenTold", "", 0, CASES]
    [death] = found.deaths
    assert "while running plain.bad: RuntimeError: Server shutting down" in death.reason
    assert sorted(noted(found.folder, found.engine)) == sorted([*CASES, "bad"])


def test_an_engine_that_ends_its_own_processes_was_not_killed(lost: LostGroups) -> None:
    found = lost["EndsItsProcessesInLoad", "", 0, CASES].first
    assert (found.status, found.outside) == (Status.ERROR, False)
    assert found.reason == "RuntimeError: no room for the cache"


def test_what_somebody_killed_is_not_kept(tmp_path: Path) -> None:
    (tmp_path / "kills").write_text("2")
    lost = {"options": {"refuse": True}, "cases": ("first",)}
    again(tmp_path, "LosesAProcessInLoad", **lost)
    outcome = outcome_of(tmp_path, "LosesAProcessInLoad", "first")
    assert (outcome.status, outcome.outside) == (Status.CRASH, True)
    summary, _ = again(tmp_path, "LosesAProcessInLoad", **lost)
    assert (summary.finished, summary.resumed) == (1, 0)
    outcome = outcome_of(tmp_path, "LosesAProcessInLoad", "first")
    assert outcome.status is Status.UNSUPPORTED


# --- the order of jobs --------------------------------------------------------------


def test_a_job_is_made_when_those_it_waits_for_are_done(tmp_path: Path) -> None:
    made: list[str] = []
    jobs = [
        Planned("third", partial(made.append, "third"), Launch(), ("second",), needs=("first",)),
        Planned("second", partial(made.append, "second"), Launch(), ("first",)),
        Planned("first", partial(made.append, "first"), Launch()),
    ]
    run(jobs, logs=tmp_path)
    assert made == ["first", "second", "third"]


@pytest.mark.parametrize(
    "needs",
    [{"needs": ("does_not_start",)}, {"needs_cells": (("does_not_start", "plain.first"),)}],
)
def test_what_a_job_needs_and_did_not_get_is_the_reason_of_its_cells(
    tmp_path: Path, needs: dict[str, Any]
) -> None:
    jobs = [
        refusing("does_not_start", tmp_path, cases=("first",)),
        refusing("healthy", tmp_path, **needs),
        refusing("refuses", tmp_path, after=("does_not_start",)),
    ]
    summary = run(jobs, logs=tmp_path / "logs")
    assert noted(tmp_path, "healthy") == []
    words = "does_not_start failed: RuntimeError: the engine core could not be initialised"
    assert summary.done["healthy"].reason == words
    outcome = outcome_of(tmp_path, "healthy", "first")
    assert (outcome.status, outcome.reason, outcome.harness) == (Status.ERROR, words, True)
    assert noted(tmp_path, "refuses") == list(CASES)
    summary = run([refusing("healthy", tmp_path)], logs=tmp_path / "logs")
    assert (summary.finished, summary.resumed) == (3, 0)
    assert noted(tmp_path, "healthy") == list(CASES)


def test_a_job_that_needs_one_cell_is_begun_while_the_other_cells_are_run(tmp_path: Path) -> None:
    waiting = planned("waits_for_gate", tmp_path, cases=("first", "bad"))
    needs = (("waits_for_gate", "plain.first"),)
    beside = Planned("beside", (tmp_path / "gate").touch, Launch(), needs_cells=needs)
    summary = run([beside, waiting], logs=tmp_path / "logs", jobs=2, limits=LIMITS)
    assert summary.done["beside"].ok
    assert noted(tmp_path, "waits_for_gate") == ["first", "bad"]
    assert outcome_of(tmp_path, "waits_for_gate", "bad").status is Status.OK


def test_a_job_waits_for_the_end_of_one_whose_cell_goes_wrong(tmp_path: Path) -> None:
    waiting = refusing("healthy", tmp_path, needs_cells=(("raises", "plain.bad"),))
    owner = refusing("raises", tmp_path, cases=("bad", "last"))
    run([waiting, owner], logs=tmp_path / "logs", jobs=2)
    ended = group(tmp_path, "raises").path / "cells" / "plain.last" / "outcome.json"
    begun = group(tmp_path, "healthy").path / "job.json"
    assert ended.stat().st_mtime_ns < begun.stat().st_mtime_ns


def test_what_failed_in_a_job_of_our_own_is_tried_again_by_a_resumed_run(tmp_path: Path) -> None:
    def once(*, ours: bool) -> int:
        """Return how long the group's events are afterwards."""
        run([refusing("does_not_start", tmp_path, ours=ours)], logs=tmp_path / "logs")
        return group(tmp_path, "does_not_start").events.stat().st_size

    first = once(ours=True)
    assert once(ours=False) == first, "kept: the engine's words stand"
    assert once(ours=True) > first


def test_a_job_that_cannot_be_made_harms_no_other(tmp_path: Path) -> None:
    def breaks() -> None:
        raise ConformanceError("the checkpoint is gone")

    broken = Planned("breaks", breaks, Launch(), folder=group(tmp_path, "breaks").path)
    summary = run([broken, refusing("healthy", tmp_path)], logs=tmp_path / "logs")
    assert "the checkpoint is gone" in summary.done["breaks"].reason
    record = group(tmp_path, "breaks").group()
    assert record is not None
    assert (record.model, record.backend, record.status) == ("m", "breaks", Status.ERROR)
    assert noted(tmp_path, "healthy") == list(CASES)


@pytest.mark.parametrize("after", [{"a": ("b",), "b": ("a",)}, {"a": ("nobody",)}, {"a": ("a",)}])
def test_a_graph_that_cannot_be_run_is_refused(
    tmp_path: Path, after: dict[str, tuple[str, ...]]
) -> None:
    jobs = [Planned(name, lambda: None, Launch(), after=names) for name, names in after.items()]
    with pytest.raises(ConformanceError, match="wait for each other or for none"):
        run(jobs, logs=tmp_path)


def test_a_zygote_reads_files_as_utf_8_whatever_the_locale() -> None:
    base = {"LC_ALL": "C", "PYTHONUTF8": "0"}
    assert zygotes.environment(Launch(), base, "mark")["PYTHONUTF8"] == "1"


# --- zygotes ------------------------------------------------------------------------


def preloading(folder: Path, source: str) -> Launch:
    """Where workers are forked from a zygote that imports this."""
    (folder / "own_preload.py").write_text(source)
    return Launch(preload="own_preload", env=(("PYTHONPATH", str(folder)),))


KILLS = "import os, signal; os.kill(os.getpid(), signal.{})"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise ImportError('libcudart is missing')", "the engine cannot.*libcudart is missing"),
        ("import os; print('about to abort', flush=True); os.abort()", "about to abort"),
        (KILLS.format("SIGKILL"), "^3 zygotes have ended: its zygote ended with status -9"),
        (KILLS.format("SIGSEGV"), "^the engine cannot be imported: its zygote ended.* -11"),
        ("", "/python: this interpreter does not say its versions: .*No such file"),
    ],
    ids=["raises", "aborts", "is killed", "crashes", "has no interpreter"],
)
def test_an_engine_that_cannot_be_imported_is_the_reason_of_its_cells_only(
    tmp_path: Path, source: str, reason: str
) -> None:
    launch = preloading(tmp_path, source) if source else Launch(python=tmp_path / "python")
    broken = planned("refuses", tmp_path, launch=launch)
    run([broken, refusing("healthy", tmp_path)], logs=tmp_path / "logs", jobs=2)
    outcome = outcome_of(tmp_path, "refuses", "first")
    assert outcome.status is Status.ERROR
    assert re.search(reason, outcome.reason)
    assert noted(tmp_path, "healthy") == list(CASES)


def test_imports_that_hang_are_given_up(tmp_path: Path, mark: str) -> None:
    slow = planned("refuses", tmp_path, launch=preloading(tmp_path, "import time; time.sleep(600)"))
    run([slow], logs=tmp_path / "logs", limits=TimeLimits(imports=1.0))
    outcome = outcome_of(tmp_path, "refuses", "first")
    assert outcome.reason == "the imports of own_preload took more than 1 s"
    assert outcome.harness, "a busy machine is no engine's fault"
    assert survivors(mark) == set()


def test_what_imports_leave_for_the_end_is_the_zygotes_and_no_workers(tmp_path: Path) -> None:
    """torch takes back every operator that vLLM's imports registered: most of a second."""
    launch = preloading(
        tmp_path,
        "import os, pathlib, weakref\n"
        "class Made: pass\n"
        "made, zygote = Made(), os.getpid()\n"
        "def left(name):\n"
        "    pathlib.Path(__file__).with_name(name).touch()\n"
        "weakref.finalize(made, lambda: left('zygote' if os.getpid() == zygote else 'worker'))\n"
        "os.register_at_fork(after_in_child=lambda: left('forked'))\n",
    )
    run([refusing("healthy", tmp_path, launch=launch)], logs=tmp_path / "logs")
    assert noted(tmp_path, "healthy") == list(CASES)
    assert (tmp_path / "forked").exists()
    assert not (tmp_path / "worker").exists()


@pytest.mark.parametrize("name", ["SIGKILL", "SIGSEGV"])
def test_a_zygote_that_is_killed_while_it_imports_is_replaced(tmp_path: Path, name: str) -> None:
    launch = preloading(
        tmp_path,
        "import os, pathlib, signal\n"
        "tries = pathlib.Path(__file__).with_name('tries')\n"
        "with tries.open('a') as file: file.write('.')\n"
        f"if len(tries.read_text()) == 1: os.kill(os.getpid(), signal.{name})\n",
    )
    run([refusing("healthy", tmp_path, launch=launch)], logs=tmp_path / "logs")
    assert noted(tmp_path, "healthy") == list(CASES)


def statuses(folder: Path, engine: str) -> list[Status]:
    return [outcome_of(folder, engine, case).status for case in CASES]


def test_a_zygote_that_is_killed_is_replaced(tmp_path: Path, mark: str) -> None:
    both = ("kills_its_zygote", "kills_its_zygote_too")
    run([refusing(engine, tmp_path) for engine in both], logs=tmp_path / "logs")
    assert statuses(tmp_path, both[0]) == [Status.UNSUPPORTED, Status.CRASH, Status.UNSUPPORTED]
    # Two have ended under the first group; the third is the last.
    outcome = outcome_of(tmp_path, both[1], "last")
    assert outcome.status is Status.ERROR
    assert outcome.reason.startswith("3 zygotes have ended: its zygote ended with status -9")
    assert survivors(mark) == set()


def test_a_zygote_that_no_longer_answers_is_replaced(
    tmp_path: Path, mark: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_REPORTED_WITHIN", 0.2)
    limits = dataclasses.replace(LIMITS, cell=1.0)
    run([refusing("stops_its_zygote", tmp_path)], logs=tmp_path / "logs", limits=limits)
    expected = [Status.UNSUPPORTED, Status.TIMEOUT, Status.UNSUPPORTED]
    assert statuses(tmp_path, "stops_its_zygote") == expected
    assert survivors(mark) == set()


def test_a_zygote_whose_socket_closes_ends_and_spares_the_rest_of_the_run(
    tmp_path: Path, mark: str
) -> None:
    one, other = (
        zygotes.start(Launch(), log=tmp_path / name, mark=mark) for name in ("one", "other")
    )
    try:
        for zygote in (one, other):
            wait_until(lambda zygote=zygote: zygote.hear() == [] and zygote.ready)
        one.socket.close()
        assert one.process.wait(timeout=PATIENCE) == 0
        assert other.process.poll() is None
    finally:
        one.end()
        other.end()
    assert survivors(mark) == set()


def test_the_end_of_one_worker_spares_what_another_one_needs(tmp_path: Path, mark: str) -> None:
    def told(event: Event) -> None:
        if isinstance(event, GroupFinished) and event.id == "healthy":
            (tmp_path / "gate").touch()

    both = [refusing(engine, tmp_path) for engine in ("HasDaemon", "healthy")]
    run(both, logs=tmp_path / "logs", jobs=2, on_event=told)
    assert outcome_of(tmp_path, "HasDaemon", "last").status is Status.UNSUPPORTED
    assert survivors(mark) == set()


# --- the parent ends ------------------------------------------------------------------


def shared_of(folder: Path) -> list[Path]:
    """What the engines of a run have in shared memory."""
    return list(Path("/dev/shm").glob(f"conformance-{folder.parent.name}-{folder.name}-*"))


PAIR = ("WaitsInLast", "healthy")


def start_parent(folder: Path, engines: Sequence[str] = PAIR) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "tests.faulty_run", str(folder), *engines],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def to_the_middle(parent: subprocess.Popen[str], folder: Path) -> None:
    """Until one group is done and the other hangs, with a child that is deaf to SIGTERM."""
    wait_until(lambda: len(group(folder, "healthy").finished()) == len(CASES))
    wait_until(lambda: bool(list(folder.glob("deaf-*"))))
    assert parent.poll() is None


def resume(folder: Path) -> dict[str, object]:
    (folder / "gate").touch()
    return faulty_run.run_all(folder, PAIR)


@pytest.mark.parametrize("whole_group", [False, True])
def test_a_killed_parent_leaves_nobody_and_can_be_resumed(
    tmp_path: Path, mark: str, whole_group: bool
) -> None:
    parent = start_parent(tmp_path)
    to_the_middle(parent, tmp_path)
    assert len(survivors(mark)) >= 4, "parent, zygote, worker, its child"
    assert shared_of(tmp_path)
    with pytest.raises(ConformanceError, match="another process is working on this run"):
        faulty_run.run_all(tmp_path, PAIR)
    if whole_group:
        os.killpg(parent.pid, signal.SIGKILL)
    else:
        parent.kill()
    parent.communicate()
    wait_until(lambda: not survivors(mark) and not shared_of(tmp_path))

    assert resume(tmp_path) == {"interrupted": False, "finished": 1, "resumed": 5}
    assert noted(tmp_path, "healthy") == list(CASES)
    assert noted(tmp_path, "WaitsInLast") == [*CASES, "last"]
    assert survivors(mark) == set()


def test_a_parent_killed_together_with_its_zygote_leaves_no_worker(
    tmp_path: Path, mark: str
) -> None:
    parent = start_parent(tmp_path, ["hangs"])
    wait_until(lambda: len(noted(tmp_path, "hangs")) == 2)
    both = [psutil.Process(parent.pid), *psutil.Process(parent.pid).children()]
    for process in both:
        process.suspend()  # so that neither sees the other one end
    for process in both:
        process.kill()
    parent.communicate()
    wait_until(lambda: not survivors(mark))


def test_each_zygote_of_a_killed_parent_ends_its_own_workers(tmp_path: Path, mark: str) -> None:
    """One that is ended by another, which has none, leaves an engine half ended."""
    code = (
        "import sys, time; from pathlib import Path\n"
        "from conformance.runner.scheduling import zygotes\n"
        "from conformance.runner.processes import sessions\n"
        "from conformance.runner.scheduling.planned import Launch\n"
        "mark, folder = sessions.new_mark(), Path(sys.argv[1])\n"
        "both = [zygotes.start(Launch(), log=folder / name, mark=mark) for name in 'ab']\n"
        "while not all(one.hear() == [] and one.ready for one in both): time.sleep(0.01)\n"
        "print(*(one.process.pid for one in both), flush=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen(
        [sys.executable, "-c", code, str(tmp_path)], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    assert parent.stdout is not None
    busy, idle = (psutil.Process(int(pid)) for pid in parent.stdout.readline().split())
    busy.suspend()
    parent.kill()
    parent.communicate()
    wait_until(lambda: not sessions.is_alive(idle.pid))
    assert sessions.is_alive(busy.pid)
    busy.resume()
    wait_until(lambda: not survivors(mark))


def test_a_parent_killed_during_imports_leaves_nobody(tmp_path: Path, mark: str) -> None:
    (tmp_path / "slow_preload.py").write_text(
        f"import pathlib, time\npathlib.Path({str(tmp_path / 'importing')!r}).touch()\n"
        "time.sleep(600)\n"
    )
    code = (
        "import sys; from pathlib import Path\n"
        "from conformance.runner.scheduling import Launch, run\n"
        "from tests.faulty_run import planned\n"
        "folder = Path(sys.argv[1])\n"
        "launch = Launch(preload='slow_preload', env=(('PYTHONPATH', str(folder)),))\n"
        "run([planned('healthy', folder, launch=launch)], logs=folder)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], cwd=ROOT)
    wait_until((tmp_path / "importing").exists)
    parent.kill()
    parent.wait()
    wait_until(lambda: not survivors(mark))


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_an_interrupted_run_stops_cleanly_and_can_be_resumed(
    tmp_path: Path, mark: str, number: signal.Signals
) -> None:
    parent = start_parent(tmp_path)
    to_the_middle(parent, tmp_path)
    # To its children too, as Ctrl-C and `timeout` send it: the zygotes must outlive it.
    # One that died between stopping a session and killing it would leave it stopped for ever.
    for process in psutil.Process(parent.pid).children():
        status = Path(f"/proc/{process.pid}/status").read_text()
        assert int(re.search(r"SigIgn:\s*(\w+)", status)[1], 16) >> (number - 1) & 1
        process.send_signal(number)
    parent.send_signal(number)
    output, _ = parent.communicate(timeout=PATIENCE)
    assert json.loads(output) == {"interrupted": True, "finished": 5, "resumed": 0}
    assert parent.returncode == 0
    assert survivors(mark) == set()
    assert shared_of(tmp_path) == []
    assert group(tmp_path, "WaitsInLast").finished() == ("plain.bad", "plain.first")

    assert resume(tmp_path) == {"interrupted": False, "finished": 1, "resumed": 5}


def test_what_is_finished_counts_also_when_its_group_was_just_ending(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(_: GroupRun) -> Group:
        raise KeyboardInterrupt

    monkeypatch.setattr(GroupRun, "close", interrupted)
    healthy = refusing("healthy", tmp_path)
    summary = run([healthy], logs=tmp_path / "logs", limits=LIMITS)
    assert summary.interrupted
    assert summary.finished == len(CASES)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_second_interrupt_waits_until_nobody_is_left(number: signal.Signals) -> None:
    handler = signal.getsignal(number)
    with loop._uninterrupted():
        signal.raise_signal(number)
    assert signal.getsignal(number) is handler
