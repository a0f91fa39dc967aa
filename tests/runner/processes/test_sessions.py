"""Whole sessions end, whoever is in them; memory that is shared counts once."""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing import shared_memory
from pathlib import Path

import psutil
import pytest

from conformance.runner.processes import sessions, temporary
from conformance.runner.scheduling.planned import Launch
from conformance.runner.scheduling.zygotes import environment
from tests.patience import wait_until

ROOT = str(Path(__file__).parents[3])


@contextmanager
def leader(code: str, *arguments: object, **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A process that leads a session; it says a line when it is ready."""
    own = uuid.uuid4().hex
    process = subprocess.Popen(
        [sys.executable, "-c", code, *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, **environment, "CONFORMANCE_TEST_MARK": own},
    )
    try:
        yield process
    finally:
        # Not by what is tested here: whoever holds the pipe would keep the test waiting.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        for other in psutil.process_iter():
            with suppress(psutil.Error):
                if other.environ().get("CONFORMANCE_TEST_MARK") == own:
                    other.kill()
        process.communicate()


def ready(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wait_for_end(pid: int) -> None:
    wait_until(lambda: not sessions.is_alive(pid))


def an_orphan(pid: int) -> bool:
    """The run of another test, in progress at the same time, may be the one that ended it."""
    return pid in sessions.orphans() or not sessions.is_alive(pid)


def group_is_gone(pgid: int) -> bool:
    """Ask the kernel, which misses nobody; the ended are reaped by and by."""
    try:
        os.killpg(pgid, 0)
    except ProcessLookupError:
        return True
    return False


STUBBORN = """
import os, signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = os.fork()
if child == 0:
    time.sleep(600)
print(child, flush=True)
time.sleep(600)
"""

#: Each process starts the next and goes: the one that is seen is gone when it is killed.
CHAIN = """
import os, time
print("ready", flush=True)
while True:
    if os.fork():
        time.sleep(0.002)
        os._exit(0)
"""

#: The child leads another session, but is still a descendant.
LEAVER = """
import os, time
child = os.fork()
if child == 0:
    os.setsid()
    time.sleep(600)
while os.getsid(child) != child:
    time.sleep(0.001)
print(child, flush=True)
time.sleep(600)
"""

#: The child leads another session and its parent is gone: only its mark is left.
DAEMON = """
import os, time
if os.fork():
    os._exit(0)
os.setsid()
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("code", [STUBBORN, LEAVER])
def test_descendants_end_with_their_leader(code: str) -> None:
    with leader(code) as process:
        child = int(ready(process))
        assert {process.pid, child} <= sessions.members(process.pid)
        assert sessions.kill(process.pid) == set()
        wait_for_end(child)
        assert not sessions.is_alive(process.pid)


def test_who_computes_is_told_from_who_helps() -> None:
    """Between a worker and what computes for it stand those that started it, and nobody else."""
    with leader(LEAVER) as process:
        child = int(ready(process))
        assert sessions.between(process.pid, [child]) == {process.pid, child}
        assert sessions.between(os.getpid(), [child]) == {os.getpid(), process.pid, child}
        assert sessions.between(process.pid, []) == {process.pid}
        assert sessions.between(child, [process.pid]) == {child}
        assert sessions.kill(process.pid) == set()
    assert sessions.between(os.getpid(), [child]) == {os.getpid()}


@pytest.mark.parametrize("attempt", range(5))
def test_a_session_that_keeps_starting_processes_ends(attempt: int) -> None:
    with leader(CHAIN) as process:
        ready(process)
        assert sessions.kill(process.pid) == set()
        process.wait()
        wait_until(lambda: group_is_gone(process.pid))


def test_who_ends_a_session_and_is_ended_meanwhile_leaves_nobody_stopped() -> None:
    """Nobody would look at a stopped process again: it keeps its memory for ever."""
    killer = (
        "import os, sys; from conformance.runner.processes import sessions\n"
        "sessions.shared_files = lambda pids: os._exit(7)\n"
        "sessions.kill(int(sys.argv[1]))\n"
    )
    with leader(STUBBORN) as process:
        child = int(ready(process))
        ended = subprocess.run([sys.executable, "-c", killer, str(process.pid)], check=False)
        assert ended.returncode == 7
        states = [psutil.Process(pid).status() for pid in (process.pid, child)]
        assert psutil.STATUS_STOPPED not in states


#: As vLLM's processes do: the longer the title, the more of the environment it is written over.
TITLED = """
import setproctitle, time
setproctitle.setproctitle("VLLM::EngineCore" * 20)
print("ready", flush=True)
time.sleep(600)
"""


def test_a_mark_is_still_there_where_a_process_has_a_title() -> None:
    pytest.importorskip("setproctitle")
    mark = f"test-{os.getpid()}"
    with leader(TITLED, **{sessions.MARK: mark}) as process:
        ready(process)
        assert process.pid not in sessions.find_marked(mark), "so that is what takes a mark away"
    with leader(TITLED, **environment(Launch(Path(sys.executable)), {}, mark)) as process:
        ready(process)
        assert process.pid in sessions.find_marked(mark)


#: A run of which only a stopped process is left.
KILLED_RUN = """
import os, signal, subprocess, sys, time
from conformance.runner.processes import sessions
there = {**os.environ, sessions.MARK: sessions.new_mark()}
left = subprocess.Popen(["sleep", "600"], env=there, start_new_session=True)
left.send_signal(signal.SIGSTOP)
print(left.pid, flush=True)
if "killed" in sys.argv:
    os.kill(os.getpid(), signal.SIGKILL)
time.sleep(600)
"""


def test_what_a_killed_run_has_left_is_ended_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with (
        leader(KILLED_RUN, "killed", PYTHONPATH=ROOT) as dead,
        leader(KILLED_RUN, PYTHONPATH=ROOT) as living,
    ):
        left, kept = int(ready(dead)), int(ready(living))
        dead.wait()
        assert an_orphan(left)
        with temporary.folder():
            wait_for_end(left)
            assert kept not in sessions.orphans()
            assert sessions.is_alive(kept), "another run's, which is in progress"


def test_what_would_have_removed_a_runs_folder_is_not_ended_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed run had its temporary files elsewhere than the next one has."""
    elsewhere, here = tmp_path / "elsewhere" / "cfm-run-killed", tmp_path / "here"
    other = tmp_path / "elsewhere" / "of-the-user"
    for made in (elsewhere, here, other):
        made.mkdir(parents=True)
    shared = Path("/dev/shm", f"test-{os.getpid()}-noted")
    shared.touch()
    (elsewhere / "shared-1").write_text(str(shared))
    monkeypatch.setenv("TMPDIR", str(here))
    monkeypatch.setattr("tempfile.tempdir", str(here))
    try:
        for tmp in (other, elsewhere):
            with leader(KILLED_RUN, "killed", PYTHONPATH=ROOT, TMPDIR=str(tmp)) as dead:
                left = int(ready(dead))
                dead.wait()
                with temporary.folder():
                    wait_for_end(left)
        wait_until(lambda: not elsewhere.exists())
        wait_until(lambda: not shared.exists())
        assert other.exists(), "no run's folder by its name"
    finally:
        shared.unlink(missing_ok=True)


def test_a_folder_elsewhere_that_a_dying_process_still_holds_is_removed_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere, here = tmp_path / "elsewhere" / "cfm-run-killed", tmp_path / "here"
    for made in (elsewhere, here):
        made.mkdir(parents=True)
    monkeypatch.setattr("tempfile.tempdir", str(here))
    held = os.open(elsewhere, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    monkeypatch.setattr(sessions, "orphans", lambda: {1})
    monkeypatch.setattr(sessions, "end_orphans", lambda: None)
    monkeypatch.setattr(sessions, "variable", lambda *_: str(elsewhere))
    with temporary.folder():
        assert elsewhere.exists()
        monkeypatch.setattr(sessions, "orphans", set)  # it has ended, and nobody names the folder
        os.close(held)
    assert not elsewhere.exists()


#: By a process id that another process has by now, and marks of another kind.
REUSED = sessions.new_mark().replace(f"{os.getpid()}-", f"{os.getpid()}-1", 1)


@pytest.mark.parametrize(
    ("mark", "orphan"),
    [
        pytest.param(REUSED, True, id="reused"),  # its own id differs in every process
        ("", False),
        ("x", False),
        ("1-x-y", False),
    ],
)
def test_whose_run_has_ended_is_told_by_its_mark(mark: str, orphan: bool) -> None:
    with leader(STUBBORN, **{sessions.MARK: mark}) as process:
        ready(process)
        assert an_orphan(process.pid) is orphan


def test_a_daemon_is_found_by_its_mark() -> None:
    mark = f"test-{os.getpid()}"
    with leader(DAEMON, **{sessions.MARK: mark}) as process:
        daemon = int(ready(process))
        assert sessions.find_marked(mark) >= {daemon}
        assert sessions.kill_marked(mark) == set()
        wait_for_end(daemon)


def test_others_are_left_alone() -> None:
    with leader(STUBBORN, **{sessions.MARK: "a"}) as one, leader(STUBBORN) as other:
        ready(one)
        child = int(ready(other))
        sessions.kill(one.pid)
        sessions.kill_marked("a")
        assert sessions.is_alive(other.pid)
        assert sessions.is_alive(child)


def test_shared_memory_of_those_killed_is_unlinked() -> None:
    """Python's resource tracker is in the session too, and is ended before it could do that."""
    code = (
        "from multiprocessing.shared_memory import SharedMemory; import time\n"
        "kept = SharedMemory(create=True, size=4096); print(kept.name, flush=True)\n"
        "time.sleep(600)\n"
    )
    with leader(code) as process:
        name = ready(process)
        assert Path(f"/dev/shm/{name}").exists()
        assert sessions.kill(process.pid) == set()
        with pytest.raises(FileNotFoundError):
            shared_memory.SharedMemory(name)


def test_a_child_dies_with_its_parent() -> None:
    code = (
        "import os, sys, time; from conformance.runner.processes import sessions\n"
        "ours, its = os.pipe()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    os.setsid(); sessions.die_with_parent(); os.write(its, b'.'); time.sleep(600)\n"
        "os.read(ours, 1); print(child, flush=True); time.sleep(600)\n"
    )
    with leader(code, PYTHONPATH=ROOT) as process:
        child = int(ready(process))
        assert sessions.is_alive(child)
        process.kill()
        wait_for_end(child)


def test_pages_shared_after_a_fork_count_once() -> None:
    code = (
        "import os, time\n"
        "kept = bytearray(b'x') * (200 << 20)\n"
        "child = os.fork()\n"
        "if child == 0: time.sleep(600)\n"
        "print(child, flush=True); time.sleep(600)\n"
    )
    with leader(code) as process:
        child = int(ready(process))
        assert 200 <= sessions.memory_mib({process.pid, child}) < 300
    assert sessions.memory_mib({child}) == 0
