"""One worker by itself: what it writes, what it skips, and whom it blames."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from conformance.engines import Refused, Unreadable
from conformance.engines.float32_products import WHOLE
from conformance.errors import ConformanceError
from conformance.runner.processes import sessions
from conformance.runner.store import GroupFolder
from conformance.spec.records import Case, Job, Outcome, Precision, Status, to_json
from conformance.worker import frames, main, process_state
from tests.faulty_run import group, job, noted

ROOT = Path(__file__).parents[2]
SWITCHES: tuple[Any, ...] = (torch.backends.cuda.matmul, torch.backends.cudnn)


def run(
    folder: Path, engine: str, precision: Precision = Precision.BF16, **more: Any
) -> tuple[GroupFolder, list[dict[str, Any]], int]:
    """A worker's work within this process: not its session, not its log."""
    todo = replace(job(engine, folder, **more), precision=precision)
    found = GroupFolder(todo.folder)
    found.path.mkdir(parents=True, exist_ok=True)
    status = main.JobRun(todo, found).run()
    lines = found.events.read_text().splitlines()
    return found, [json.loads(line) for line in lines], status


def outcome(folder: GroupFolder, case: str) -> Outcome:
    found = folder.outcome(f"plain.{case}")
    assert found is not None
    return found


def test_it_says_what_it_does_in_order(tmp_path: Path) -> None:
    _, events, status = run(tmp_path, "healthy", cases=("first", "last"))
    assert status == 0
    assert [(event["event"], event.get("case", "")) for event in events] == [
        ("loading", ""),
        ("loaded", ""),
        ("started", "plain.first"),
        ("finished", "plain.first"),
        ("started", "plain.last"),
        ("finished", "plain.last"),
        ("closing", ""),
        ("closed", ""),
    ]
    times = [event["at"] for event in events]
    assert times == sorted(times)


def test_a_finished_case_is_not_run_again(tmp_path: Path) -> None:
    run(tmp_path, "healthy", cases=("first",))
    folder, _, _ = run(tmp_path, "healthy")
    assert noted(tmp_path, "healthy") == ["first", "bad", "last"]
    assert folder.finished() == ("plain.bad", "plain.first", "plain.last")


@pytest.mark.parametrize(
    ("precision", "expected"), [(Precision.FLOAT32, "ieee"), (Precision.BF16, "tf32")]
)
def test_whatever_opens_in_float32_multiplies_whole_numbers_from_its_first_product(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: Precision, expected: str
) -> None:
    for name in WHOLE:
        monkeypatch.setenv(name, "")
    before = [switches.allow_tf32 for switches in SWITCHES]
    try:
        for switches in SWITCHES:
            switches.allow_tf32 = True
        folder, _, _ = run(tmp_path, "TellsProducts", cases=("first",), precision=precision)
    finally:
        for switches, value in zip(SWITCHES, before, strict=True):
            switches.allow_tf32 = value
    told = folder.group()
    assert told is not None
    assert told.identity["products"] == expected


@pytest.mark.parametrize(
    ("engine", "options", "finished"),
    [
        ("raises", {}, 2),
        ("RaisesAndIsWell", {"well": True}, 3),
        ("RaisesAndIsWell", {"well": False}, 2),
        ("RaisesAndIsWell", {"well": "broken"}, 2),
        ("refuses", {}, 3),
        ("unreadable", {}, 3),
        ("sees_nothing", {}, 3),
    ],
)
def test_an_engine_that_raised_gets_no_further_case_unless_it_shows_that_it_is_well(
    tmp_path: Path, engine: str, options: dict[str, object], finished: int
) -> None:
    folder, events, status = run(tmp_path, engine, options=options)
    assert (status, len(folder.finished())) == (0, finished)
    assert events[-1]["event"] == "closed"


def test_a_job_without_cases_only_opens_the_engine(tmp_path: Path) -> None:
    folder, events, status = run(tmp_path, "healthy", cases=(), scenarios=tmp_path / "none")
    assert status == 0
    assert folder.group() is not None
    assert [event["event"] for event in events] == ["loading", "loaded", "closing", "closed"]


def test_a_case_of_no_scenario_is_our_error(tmp_path: Path) -> None:
    folder, _, _ = run(tmp_path, "healthy", cases=("first",), scenarios=tmp_path)
    found = outcome(folder, "first")
    assert (found.status, found.harness) == (Status.ERROR, True)
    assert "no scenario 'plain'" in found.reason


def observe(error: BaseException, owners: frames.Roots) -> tuple[Outcome, Mapping[str, Any]]:
    class Raising:
        def run(self, *_: object) -> Mapping[str, Any]:
            raise error

    engine: Any = Raising()
    scenarios: Any = {"plain": object()}
    return main.observe(engine, scenarios, Case("plain", "first", ("a",)), owners)


@pytest.mark.parametrize(
    ("error", "status", "reason", "harness"),
    [
        (Refused("  no pipelines\n"), Status.UNSUPPORTED, "no pipelines", False),
        (Unreadable("two readings"), Status.STRUCTURE, "two readings", False),
        (ValueError("a shape"), Status.ERROR, "ValueError: a shape", False),
        (AssertionError(), Status.ERROR, "AssertionError: raise error", False),
        (ImportError("x", name="vllm"), Status.ERROR, "ImportError: x", False),
        (ImportError("x", name="conformance.spec.direction"), Status.ERROR, "ImportError: x", True),
        (NameError("a name"), Status.ERROR, "NameError: a name", False),
        (OSError(27, "File too large"), Status.ERROR, "OSError: [Errno 27] File too large", True),
        (OSError(2, "none"), Status.ERROR, "FileNotFoundError: [Errno 2] none", False),
        (ConformanceError("bad file"), Status.ERROR, "ConformanceError: bad file", True),
    ],
)
def test_an_exception_becomes_an_outcome(
    error: Exception, status: Status, reason: str, harness: bool
) -> None:
    found, observed = observe(error, {})
    assert (found.status, found.reason, found.harness) == (status, reason, harness)
    assert observed == {}
    if status is Status.ERROR:
        assert found.detail.startswith("Traceback")
        assert "in run" in found.detail


def test_a_misspelt_name_of_ours_is_our_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(main, "json", None)
    monkeypatch.delattr(main, "json")
    with pytest.raises(NameError) as caught:
        main.differences({}, {})
    assert main.harness_fault(caught.value)


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_an_exit_is_an_outcome_where_a_block_asks_for_it(error: BaseException) -> None:
    found, _ = observe(error, frames.roots(Path(__file__).parent))  # this file's is the block
    assert found.status is Status.ERROR
    assert type(error).__name__ in found.reason
    for owners in ({}, frames.roots()):
        with pytest.raises(type(error)):
            observe(error, owners)


# --- identity ---------------------------------------------------------------------


VALUES = st.none() | st.booleans() | st.integers() | st.text() | st.lists(st.integers())


@given(st.dictionaries(st.text(), VALUES), st.data())
def test_an_engine_is_what_it_says_unless_a_value_differs(
    identity: dict[str, Any], data: st.DataObject
) -> None:
    assert main.differences(identity, identity) == []
    if identity:
        name = data.draw(st.sampled_from(sorted(identity)))
        other = data.draw(VALUES.filter(lambda value: value != identity[name]))
        assert len(main.differences({name: other}, identity)) == 1
        assert len(main.differences(identity, {**identity, name: other})) == 1
    identity = {"stages": 1, "layers": [0, 4], "eager": True, "name": "x"}
    expected = {"stages": 2, "layers": (0, 4), "prefix_caching": False}
    assert main.differences(expected, identity) == [
        "stages is 1, expected 2",
        "prefix_caching is not known, expected False",
    ]


# --- as a program -----------------------------------------------------------------


def test_it_runs_alone_leads_its_session_and_writes_only_to_its_log(tmp_path: Path) -> None:
    path = tmp_path / "job.json"
    path.write_text(to_json(job("Talks", tmp_path, options={"refuse": True})))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-m", "conformance.worker.main", str(path)],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    folder = group(tmp_path, "Talks")
    assert outcome(folder, "last").reason == "refuses everything"
    assert "so does its child" in folder.log_tail()
    assert "an engine prints" in folder.log_tail()
    record = folder.group()
    assert record is not None
    assert record.identity == {"leads": True, "core": 0}
    assert record.versions["python"].count(".") == 2
    assert record.peak_mib > 10


def test_a_damaged_record_ends_it_as_our_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    todo: Job = job("healthy", tmp_path)
    path = tmp_path / "job.json"
    path.write_text(to_json(todo))
    cell = GroupFolder(todo.folder).cell("plain.first")
    cell.mkdir(parents=True)
    (cell / "outcome.json").write_text("{")
    monkeypatch.setattr(process_state, "lead_session", lambda: None)
    monkeypatch.setattr(process_state, "redirect", lambda log: None)
    assert main.main(path) == sessions.HARNESS_FAILED
