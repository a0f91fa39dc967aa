"""Ray may end the process that has joined a cluster: another one waits for it, and tells."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

from conformance.runner.processes import sessions
from tests.patience import PATIENCE, wait_until

ROOT = Path(__file__).parents[3]

#: What one command does: joined by a process of its own, as `--on` is.
_PROGRAM = """
import atexit, os, subprocess, sys, time, typer
import conformance_command
from conformance import cli
from conformance.runner import cluster
from conformance.runner.processes import sessions, temporary
{}
def heard(begun=os.getpid()) -> None:
    if os.getpid() != begun:  # the process that works comes to an end of its own
        open(os.environ["TMPDIR"] + "/heard", "w").close()

def verb() -> None:
    atexit.register(heard)
    if (ended := cluster.fork()) is not None:
        raise typer.Exit(ended)
    {}

cli.app.command("apart")(verb)
sys.argv = ["conformance", "apart"]
conformance_command.main()
"""

#: A process of the run beside it, as Ray's are, and a folder.
_LEAVES = """
    os.environ[sessions.MARK] = sessions.new_mark()
    os.fork() or time.sleep(1) or os._exit(0)  # has all that is open, and ends later
    with temporary.folder():
        print(subprocess.Popen(["sleep", "600"], stdout=2).pid, flush=True)
        {}
"""

#: With a folder, until it is told to end. A sleep that is short: CPython sleeps on where a signal
#: comes between its last look and the system call.
_WAITS = """
    with temporary.folder():
        {}
        while True:
            time.sleep(0.01)
"""

#: The first process is told to end right after the fork, before it runs another line.
_TOLD_AT_ONCE = """
fork = os.fork
def told():
    pid = fork()
    if pid:
        os.kill(os.getpid(), 15)
    return pid
os.fork = told
"""


def begun(what: str, folder: Path, first: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _PROGRAM.format(first, what)],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder), "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_it_ends_as_the_one_that_works(tmp_path: Path) -> None:
    process = begun("raise typer.Exit(1)", tmp_path)
    _, words = process.communicate(timeout=PATIENCE)
    assert (process.returncode, words) == (1, "")


def test_what_ray_ends_is_told_and_nothing_is_left(tmp_path: Path) -> None:
    process = begun(_LEAVES.format("os._exit(1)"), tmp_path)
    said, words = process.communicate(timeout=PATIENCE)
    assert process.returncode == 3
    assert "the cluster is lost" in words and "--resume" in words and "Traceback" not in words
    assert not sessions.is_alive(int(said))
    assert list(tmp_path.iterdir()) == []


def test_who_is_told_to_end_hears_it_there(tmp_path: Path) -> None:
    process = begun(_WAITS.format("print('there', flush=True)"), tmp_path)
    assert process.stdout is not None and process.stdout.readline() == "there\n"
    process.send_signal(signal.SIGTERM)
    _, words = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, words
    assert [each.name for each in tmp_path.iterdir()] == ["heard"]


def test_who_is_told_to_end_while_it_begins_hears_it_there(tmp_path: Path) -> None:
    """The one that waits must not end in its place, and take it along with its folders."""
    process = begun(_WAITS.format("pass"), tmp_path, first=_TOLD_AT_ONCE)
    _, words = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, words
    assert [each.name for each in tmp_path.iterdir()] == ["heard"]


def test_who_is_killed_takes_the_other_along(tmp_path: Path) -> None:
    process = begun("print(os.getpid(), flush=True); time.sleep(600)", tmp_path)
    assert process.stdout is not None
    there = int(process.stdout.readline())
    assert there != process.pid
    process.kill()
    process.wait()
    wait_until(lambda: not sessions.is_alive(there))
