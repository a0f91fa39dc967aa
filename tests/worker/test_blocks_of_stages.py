"""A block that harms a process of its engine: the cell says so, and the next cells are unharmed."""

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

STOPS = "os.kill(os.getpid(), signal.SIGSTOP)"


def outcomes(folder: Path, code: str, engine: str) -> dict[str, Outcome | None]:
    scenarios = folder / "blocks"
    scenarios.mkdir()
    (scenarios / "plain.py").write_text(SCENARIO.format(code=code))
    run([planned(engine, folder, scenarios=scenarios)], logs=folder / "logs", jobs=1, limits=LIMITS)
    return {name: group(folder, engine).outcome(f"plain.{name}") for name in CASES}


@pytest.mark.parametrize("engine", ["BlockHere", "BlockInAStage"])
@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        ("os._exit(7)", Status.CRASH, "it ended its process: os._exit(7)"),
        (STOPS, Status.CRASH, "it sent SIGSTOP to its own process"),
        ("sys.exit(0)", Status.ERROR, "SystemExit: 0"),
    ],
)
def test_the_end_of_a_process_is_the_blocks_own(
    engine: str, code: str, status: Status, words: str, tmp_path: Path
) -> None:
    found = outcomes(tmp_path, code, engine)
    bad = found["bad"]
    assert bad is not None
    assert (bad.status, bad.reason) == (status, words)
    assert bad.frames[-1].owner is Owner.SCENARIO
    assert not bad.left, "what went with the engine is not what the block left"
    assert noted(tmp_path, engine).count("bad") == 1, "another worker's would end alike"
    assert all((one := found[name]) and one.status is Status.OK for name in ("first", "last"))


@pytest.mark.parametrize("engine", ["BlockHere", "BlockInAStage"])
def test_no_cell_runs_in_a_process_that_another_one_has_changed(
    engine: str, tmp_path: Path
) -> None:
    code = "assert os.getcwd() != '/'; os.chdir('/')"
    found = outcomes(tmp_path, code, engine)
    assert found["bad"] is not None
    assert (found["bad"].status, found["bad"].left) == (Status.OK, ("the working directory",))
    processes = [line.split() for line in (tmp_path / "ran").read_text().splitlines()]
    ran = dict(processes)
    assert ran["first"] == ran["bad"] != ran["last"]


def test_an_engine_that_loses_a_process_blames_no_block(tmp_path: Path) -> None:
    found = outcomes(tmp_path, "pass", "EngineWithProcess")
    assert found["bad"] is not None
    assert found["bad"].status is Status.CRASH
    assert not found["bad"].left
    assert not found["bad"].frames
