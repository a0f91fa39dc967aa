"""A block that harms its engine: its own cell says so, and the next cells are unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.records import Outcome, Owner, Status
from conformance.runner import run
from tests.faulty_run import CASES, LIMITS, group, noted, planned

SCENARIO = '''"""Does to its process what no block should."""

import os
import signal
import sys

from conformance import scenario


@scenario()
def plain(lm, case):
    {code}


@plain.reference
def _(model, case):
    return []
'''


def outcomes(folder: Path, code: str, engine: str) -> dict[str, Outcome | None]:
    scenarios = folder / "blocks"
    scenarios.mkdir()
    (scenarios / "plain.py").write_text(SCENARIO.format(code=code))
    run([planned(engine, folder, scenarios=scenarios)], logs=folder / "logs", jobs=1, limits=LIMITS)
    return {name: group(folder, engine).outcome(f"plain.{name}") for name in CASES}


STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"
#: Of these Python names the line that ended the worker, or at which it hung.
PYTHON_SAYS = ("os.abort()", "while True: signal.pause()", "sys.exit(0)")
BREAKS = "from tests import faulty; faulty.BROKEN.append('weights')"


@pytest.mark.parametrize(
    ("code", "status", "words", "tries"),
    [
        ("os._exit(7)", Status.CRASH, "the worker ended with exit status 7 while running", 2),
        (STOPS, Status.TIMEOUT, "was stopped by a signal; all its processes were killed", 2),
        ("os.abort()", Status.CRASH, "the worker was ended by SIGABRT", 2),
        ("while True: signal.pause()", Status.TIMEOUT, "no outcome within 4 s", 1),
        ("sys.exit(0)", Status.ERROR, "SystemExit: 0", 1),
    ],
)
def test_a_block_that_ends_or_stops_its_worker_runs_again_alone(
    code: str, status: Status, words: str, tries: int, tmp_path: Path
) -> None:
    found = outcomes(tmp_path, code, "BlockHere")
    bad = found["bad"]
    assert bad is not None
    assert bad.status is status
    assert words in bad.reason
    if code in PYTHON_SAYS:
        assert bad.frames[-1].owner is Owner.SCENARIO
    assert noted(tmp_path, "BlockHere").count("bad") == tries
    assert all((one := found[name]) and one.status is Status.OK for name in ("first", "last"))
    ran = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    [*_, (name, alone)] = ran
    assert tries == 1 or (name == "bad" and [pid for _, pid in ran].count(alone) == 1)


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("sys.exit(0)", Status.ERROR, "EndedByBlockError: SystemExit: 0"),
        ("raise KeyboardInterrupt", Status.ERROR, "EndedByBlockError: KeyboardInterrupt"),
        (STOPS, Status.TIMEOUT, "was stopped by a signal"),
    ],
)
def test_a_block_in_a_stage_does_not_end_it_in_silence(
    code: str, status: Status, words: str, tmp_path: Path
) -> None:
    found = outcomes(tmp_path, code, "BlockInAStage")
    bad = found["bad"]
    assert bad is not None
    assert bad.status is status
    assert words in bad.reason
    assert status is Status.TIMEOUT or bad.frames[-1].owner is Owner.SCENARIO
    assert all((one := found[name]) and one.status is Status.OK for name in ("first", "last"))


@pytest.mark.parametrize(
    ("code", "left"),
    [
        (BREAKS, "what the engine computes"),
        ("os.closerange(0, 4096)", "the descriptors of its process"),
    ],
)
def test_no_case_runs_in_a_worker_that_another_one_has_damaged(
    code: str, left: str, tmp_path: Path
) -> None:
    found = outcomes(tmp_path, code, "BlockHere")
    assert found["bad"] is not None
    assert (found["bad"].status, found["bad"].left) == (Status.OK, (left,))
    assert not any((one := found[name]) and one.left for name in ("first", "last"))
    processes = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    ran = dict(processes)
    assert ran["first"] == ran["bad"] != ran["last"]


@pytest.mark.parametrize("code", ["os.chdir('/'); os.environ.clear()", "os.fork()", "pass"])
def test_the_next_case_runs_in_a_worker_that_computes_as_before(code: str, tmp_path: Path) -> None:
    found = outcomes(tmp_path, code, "BlockHere")
    assert all(one and one.status is Status.OK and not one.left for one in found.values())
    processes = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    assert [name for name, _ in processes] == list(CASES), "a fork does not go on"
    assert len({pid for _, pid in processes}) == 1


def test_an_engine_that_loses_a_process_blames_no_block(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "pass", "EngineWithProcess")
    assert found["bad"] is not None
    assert found["bad"].status is Status.CRASH
    assert not found["bad"].left
    assert not found["bad"].frames
