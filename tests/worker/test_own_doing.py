"""What a block does to its process: that it is seen, told by its line, and harms no other cell."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.records import Case, Frame, Owner, Status
from conformance.runner.stacks import in_the_trace
from conformance.store import doings
from conformance.store.doings import Doing, How
from conformance.worker import frames, main, surroundings

ROOT = Path(__file__).parents[2]

WATCHED = """
import os, signal, sys
from pathlib import Path
from conformance.worker import own_doing
own_doing.tell_in(Path("events"), [Path.cwd()])
watch = own_doing.watch()
watch.begin()
from mine import block
with watch.block():
    block()
watch.look()
"""


def did(folder: Path, code: str) -> tuple[int, list[Doing]]:
    """What a process with a block of this code says of it, and its end."""
    lines = ("import os, signal, sys, threading", "def block():", f"    {code}")
    (folder / "mine.py").write_text("\n".join(lines))
    (folder / "events").touch()
    ran = subprocess.run(
        [sys.executable, "-c", WATCHED],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{folder}"},
        capture_output=True,
        text=True,
        check=False,
    )
    return ran.returncode, doings.since(folder / "events", 0)


@pytest.mark.parametrize(
    ("code", "words", "status"),
    [
        ("os._exit(7)", "it ended its process: os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it sent SIGKILL to its own process", -9),
        ("os.kill(os.getpid(), signal.SIGTERM)", "it sent SIGTERM to its own process", -15),
        ("os.killpg(0, signal.SIGKILL)", "it sent SIGKILL to its own process", -9),
        ("signal.raise_signal(signal.SIGKILL)", "it sent SIGKILL to its own process", -9),
        ("os.abort()", "it ended its process: os.abort()", -6),
        ("os.kill(os.getpid(), 0); os.kill(os.getppid(), 0)", "", 0),
        ("os.fork() or os._exit(3)", "", 0),
    ],
)
def test_an_end_is_told_before_it_comes(code: str, words: str, status: int, tmp_path: Path) -> None:
    code = f"os.setpgid(0, 0); {code}"  # whom a group's signal would hit besides
    ended, told = did(tmp_path, code)
    assert ended == status
    assert [one.words for one in told if one.how is How.ENDS] == ([words] if words else [])
    assert all(one.frames[-1].owner is Owner.SCENARIO for one in told if one.how is How.ENDS)


@pytest.mark.parametrize("code", ["sys.exit(3)", "raise KeyboardInterrupt"])
def test_asking_for_the_end_of_the_program_is_an_error(code: str, tmp_path: Path) -> None:
    ended, told = did(tmp_path, code)
    assert ended == 1, "an exception like any other"
    assert [one.how for one in told] == [How.RAISED]
    assert told[0].words in {"SystemExit: 3", "KeyboardInterrupt"}
    assert told[0].frames[-1].owner is Owner.SCENARIO


def test_what_a_block_leaves_is_told_with_every_descriptor_closed(tmp_path: Path) -> None:
    _, told = did(tmp_path, "os.chdir('/'); os.closerange(0, 4096)")
    assert {one.words for one in told} == {"the working directory", "descriptors of its files"}


def test_a_child_that_a_block_forks_ends_where_the_block_does(tmp_path: Path) -> None:
    ended, told = did(tmp_path, "threading.Event().wait(0.1) if os.fork() else None")
    assert ended == 0
    assert "its child processes" in {one.words for one in told}
    assert len(told) == 1, "the child says nothing"


def _nothing() -> None:
    pass


def _nothing_with(file: int) -> None:
    pass


#: A descriptor of another kind of file.
_OTHER: list[int] = []


def _variable() -> None:
    os.environ["CONFORMANCE_OF_A_TEST"] = "1"


def _threads() -> None:
    for _ in range(20):
        threading.Thread(target=_WAIT.wait, daemon=True).start()


def _type() -> None:
    import torch

    torch.set_default_dtype(torch.float64)


def _function() -> None:
    import torch

    torch.nn.functional.silu = torch.relu


_WAIT = threading.Event()


@pytest.mark.parametrize(
    ("block", "named"),
    [
        (_nothing, ""),
        (lambda: os.chdir("/"), "the working directory"),
        (_variable, "the environment's variables"),
        (_threads, "its threads"),
        (_type, "the default type"),
        (_function, "functions of torch.nn.functional"),
        (lambda: signal.signal(signal.SIGUSR2, signal.SIG_IGN), "the handlers of signals"),
        (lambda: os.umask(0o7), "the mask of new files"),
    ],
)
def test_what_a_block_leaves_otherwise_is_named(
    block: Callable[[], None], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.nn.functional, "silu", torch.nn.functional.silu)
    environ, kind = dict(os.environ), torch.get_default_dtype()
    handler, mask = signal.getsignal(signal.SIGUSR2), os.umask(0o22)
    os.umask(mask)
    _WAIT.clear()
    before = surroundings.surroundings()
    try:
        block()
        found = surroundings.changes(before, surroundings.surroundings())
    finally:
        signal.signal(signal.SIGUSR2, handler)
        os.umask(mask)
        os.environ.clear()
        os.environ.update(environ)
        torch.set_default_dtype(kind)
        _WAIT.set()
    assert (named in found) if named else found == []


def test_allocating_without_end_is_an_error_where_it_is_done() -> None:
    script = (
        "import mmap\nfrom conformance.worker import main\nmain.limit_memory()\nkept = []\n"
        # As malloc does; untouched, it takes no room.
        "while len(kept) < 4096: kept.append(mmap.mmap(-1, 1 << 30, flags=mmap.MAP_PRIVATE))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert "Cannot allocate memory" in ran.stderr


def test_every_cell_begins_with_the_same_random_state() -> None:
    import numpy as np
    import torch

    def drawn() -> tuple[float, float, float]:
        return random.random(), float(np.random.random()), float(torch.rand(()))  # noqa: NPY002

    put_back = surroundings.keep_random_state()
    first = drawn()
    torch.manual_seed(0)
    put_back()
    assert drawn() == first


STACKS = """\
Thread 0x00007f (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 327 in wait
  File "/venv/lib/python3.11/site-packages/nnsight/mediator.py", line 12 in wait
  File "<nnsight 4 at /scen/hangs.py>", line 3 in block

Current thread 0x00007e (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 629 in wait
  File "{file}", line 12 in __inner__
  File "/venv/lib/python3.11/site-packages/nnsight/run.py", line 9 in run
"""


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("<nnsight 4>", "<nnsight 4>"),
        ("/scen/hangs.py", "scen/hangs.py"),
        ("/venv/lib/python3.11/site-packages/vllm/core.py", ""),
    ],
)
def test_who_waits_in_the_block_itself_is_told_from_who_waits_for_the_engine(
    file: str, name: str
) -> None:
    found = in_the_trace(STACKS.format(file=file), [Path("/scen")])
    assert found == ((Frame(Owner.SCENARIO, name, 12),) if name else ())


CASE = Case("plain", "first", ("a",))


class Raises:
    """An engine whose block is this file's code."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def run(self, *_: object) -> object:
        raise self.error


@pytest.mark.parametrize("error", [SystemExit(0), KeyboardInterrupt()])
def test_a_block_that_asks_for_the_end_of_the_program_is_an_error_of_its_own(
    error: BaseException,
) -> None:
    known = frames.roots(Path(__file__).parent)
    outcome, _ = main.observe(Raises(error), {"plain": object()}, CASE, known)  # type: ignore[arg-type,dict-item]
    assert outcome.status is Status.ERROR
    assert type(error).__name__ in outcome.reason
    with pytest.raises(type(error)):
        main.observe(Raises(error), {"plain": object()}, CASE, frames.roots())  # type: ignore[arg-type,dict-item]


@pytest.mark.parametrize(
    ("in_a_step", "does", "seen"),
    [
        (True, os.close, True),
        (False, os.close, True),
        (True, lambda file: os.dup2(_OTHER[0], file), False),  # is looked into after the cell
        (False, lambda file: os.dup2(_OTHER[0], file), True),
        (True, _nothing_with, False),
        (False, _nothing_with, False),
    ],
)
def test_files_that_are_closed_are_seen_in_a_step(
    in_a_step: bool, does: Callable[[int], object], seen: bool, tmp_path: Path
) -> None:
    _OTHER[:] = [os.open(tmp_path, os.O_RDONLY)]
    files = [os.open(os.devnull, os.O_RDONLY) for _ in range(200)]
    try:
        before = surroundings.surroundings()
        for file in files:
            does(file)
        after = surroundings.surroundings(in_a_step=in_a_step)
        assert (surroundings.DESCRIPTORS in surroundings.changes(before, after)) is seen
    finally:
        for file in (*_OTHER, *files):
            with suppress(OSError):
                os.close(file)
