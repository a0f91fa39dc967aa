"""A block that harms its engine: its own cell says so, and the next cells are unharmed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from conformance.runner.scheduling import run
from conformance.spec.records import Outcome, Owner, Status
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
BREAKS = "from tests import faulty; faulty.BROKEN.append('weights')"
CHANGES = "os.chdir('/'); os.environ.clear()"
HANGS = "while True: signal.pause()"
CLOSES = "os.closerange(0, 4096)"
INTERRUPTS = "raise KeyboardInterrupt"
EXITS = "sys.exit(0)"
HERE = (EXITS, STOPS, BREAKS, CHANGES, HANGS, CLOSES, "os._exit(7)", "os.abort()", "os.fork()")
#: Each engine and a block that it runs.
BLOCKS = [
    *(("BlockHere", code) for code in (*HERE, "pass")),
    *(("BlockInAStage", code) for code in (EXITS, INTERRUPTS, STOPS)),
    ("EngineWithProcess", "pass"),
]


@dataclass(frozen=True)
class Ended:
    """What is left of one group: its folder holds what the engine noted."""

    folder: Path
    engine: str

    def __getitem__(self, case: str) -> Outcome:
        outcome = group(self.folder, self.engine).outcome(f"plain.{case}")
        assert outcome is not None
        return outcome

    @property
    def ran(self) -> list[tuple[str, str]]:
        """The cases that were run, and in which process."""
        lines = (self.folder / "ran").read_text().splitlines()
        return [(name, pid) for name, pid in map(str.split, lines)]


EndedBlocks = dict[tuple[str, str], Ended]


@pytest.fixture(scope="module")
def ended(tmp_path_factory: pytest.TempPathFactory) -> EndedBlocks:
    """Run every block in one run, each in a group of its own; by their engine and their code."""
    folder = tmp_path_factory.mktemp("blocks")
    found = {}
    plan = []
    for engine, code in BLOCKS:
        name = f"{engine}-{len(plan)}"
        scenarios = folder / name / "blocks"
        scenarios.mkdir(parents=True)
        (scenarios / "plain.py").write_text(SCENARIO.format(code=code))
        plan.append(replace(planned(engine, folder / name, scenarios=scenarios), id=name))
        found[engine, code] = Ended(folder / name, engine)
    run(plan, logs=folder / "logs", jobs=6, limits=LIMITS)
    return found


#: Of these Python names the line that ended the worker, or at which it hung.
PYTHON_SAYS = ("os.abort()", HANGS, EXITS)


@pytest.mark.parametrize(
    ("code", "status", "words", "tries"),
    [
        ("os._exit(7)", Status.CRASH, "the worker ended with exit status 7 while running", 2),
        (STOPS, Status.TIMEOUT, "was stopped by a signal; all its processes were killed", 2),
        ("os.abort()", Status.CRASH, "the worker was ended by SIGABRT", 2),
        (HANGS, Status.TIMEOUT, "no outcome within 4 s", 1),
        (EXITS, Status.ERROR, "SystemExit: 0", 1),
    ],
)
def test_a_block_that_ends_or_stops_its_worker_runs_again_alone(
    ended: EndedBlocks, code: str, status: Status, words: str, tries: int
) -> None:
    found = ended["BlockHere", code]
    assert found["bad"].status is status
    assert words in found["bad"].reason
    if code in PYTHON_SAYS:
        assert found["bad"].frames[-1].owner is Owner.SCENARIO
    assert noted(found.folder, "BlockHere").count("bad") == tries
    assert {found["first"].status, found["last"].status} == {Status.OK}
    [*_, (name, alone)] = found.ran
    assert tries == 1 or (name == "bad" and [pid for _, pid in found.ran].count(alone) == 1)


@pytest.mark.parametrize(
    ("code", "status", "words"),
    [
        (EXITS, Status.ERROR, "EndedByBlockError: SystemExit: 0"),
        (INTERRUPTS, Status.ERROR, "EndedByBlockError: KeyboardInterrupt"),
        (STOPS, Status.TIMEOUT, "was stopped by a signal"),
    ],
)
def test_a_block_in_a_stage_does_not_end_it_in_silence(
    ended: EndedBlocks, code: str, status: Status, words: str
) -> None:
    found = ended["BlockInAStage", code]
    assert found["bad"].status is status
    assert words in found["bad"].reason
    assert status is Status.TIMEOUT or found["bad"].frames[-1].owner is Owner.SCENARIO
    assert {found["first"].status, found["last"].status} == {Status.OK}


@pytest.mark.parametrize(
    ("code", "left"),
    [
        (BREAKS, "what the engine computes"),
        (CLOSES, "the descriptors of its process"),
    ],
)
def test_no_case_runs_in_a_worker_that_another_one_has_damaged(
    ended: EndedBlocks, code: str, left: str
) -> None:
    found = ended["BlockHere", code]
    assert (found["bad"].status, found["bad"].left) == (Status.OK, (left,))
    assert not found["first"].left and not found["last"].left
    ran = dict(found.ran)
    assert ran["first"] == ran["bad"] != ran["last"]


@pytest.mark.parametrize("code", [CHANGES, "os.fork()", "pass"])
def test_the_next_case_runs_in_a_worker_that_computes_as_before(
    ended: EndedBlocks, code: str
) -> None:
    found = ended["BlockHere", code]
    assert all(found[case].status is Status.OK and not found[case].left for case in CASES)
    assert [name for name, _ in found.ran] == list(CASES), "a fork does not go on"
    assert len({pid for _, pid in found.ran}) == 1


def test_an_engine_that_loses_a_process_blames_no_block(ended: EndedBlocks) -> None:
    bad = ended["EngineWithProcess", "pass"]["bad"]
    assert bad.status is Status.CRASH
    assert not bad.left
    assert not bad.frames
