"""The lab of the relay's engines leaves nobody behind, however its own process ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from multiprocessing import Pipe
from pathlib import Path

import pytest
from relay_lab import Engine

from conformance.runner.processes import sessions, temporary
from tests.patience import PATIENCE

HERE = Path(__file__).parent

STARTS = """
import time
from relay_lab import Lab, Spec
lab = Lab()
engine = lab.engine(Spec("llama-4", 2))
print(lab.folder, engine.pid, flush=True)
time.sleep(600)
"""


def of(folder: str) -> set[int]:
    """The processes whose temporary files are there."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if f"TMPDIR={folder}".encode() in entry.read_bytes().split(b"\0"):
                found.add(int(entry.parent.name))
        except OSError:
            continue
    return {pid for pid in found if sessions.is_alive(pid)}


def test_an_engine_that_has_ended_is_not_waited_for() -> None:
    """As on a GPU, where the lab itself starts it: what nobody asks for stays, and looks alive."""
    process = subprocess.Popen([sys.executable, "-c", ""], start_new_session=True)
    begun = time.monotonic()
    Engine(Pipe()[0], process.pid, process).close()
    assert time.monotonic() - begun < PATIENCE / 2


@pytest.mark.engine
@pytest.mark.slow
def test_a_killed_lab_takes_its_engines_with_it(tmp_path: Path) -> None:
    lab = subprocess.Popen(
        [sys.executable, "-c", STARTS],
        env={**os.environ, "PYTHONPATH": f"{HERE.parents[2]}{os.pathsep}{HERE}"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert lab.stdout is not None
        folder, pid = lab.stdout.readline().split()
        processes = of(folder) | sessions.members(int(pid))
        assert len(processes) > 2, "the warm process, the engine and its stages"
        # A stopped one ends only where the kernel sees to it.
        os.kill(int(pid), signal.SIGSTOP)
    finally:
        os.killpg(lab.pid, signal.SIGKILL)
        lab.wait()
    deadline = time.monotonic() + PATIENCE
    while (left := {one for one in processes if sessions.is_alive(one)}) and (
        time.monotonic() < deadline
    ):
        time.sleep(0.1)
    assert not left
    names = [Path(folder).name, *(one.name for one in Path(folder).glob("vllm_dist_*"))]
    temporary.remove(Path(folder))  # as the next run does
    assert not [one for one in Path("/dev/shm").iterdir() if one.name.startswith(tuple(names))]
