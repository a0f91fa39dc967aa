"""What a block does to its process: that it is seen, told by its line, and harms no other cell."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from conformance.records import Case, Frame, Owner, Status
from conformance.runner.stacks import in_the_trace
from conformance.worker import frames, main, own_doing

WATCHED = """
import os, signal, sys
from conformance.worker import own_doing
own_doing.watch_ends(lambda words, calls: print(words, calls, sep="\\n", flush=True))
def block():
    {code}
block()
"""


@pytest.mark.parametrize(
    ("code", "words", "status"),
    [
        ("os._exit(7)", "it ended its process: os._exit(7)", 7),
        ("os.kill(os.getpid(), signal.SIGKILL)", "it sent SIGKILL to its own process", -9),
        ("os.kill(os.getpid(), signal.SIGTERM)", "it sent SIGTERM to its own process", -15),
        ("os.kill(os.getpid(), 0); os.kill(os.getppid(), 0)", "", 0),
        ("os.fork() or os._exit(3)", "", 0),
    ],
)
def test_an_end_is_told_before_it_comes(code: str, words: str, status: int) -> None:
    script = WATCHED.format(code=code)
    ran = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert ran.returncode == status, ran.stderr
    assert ran.stdout.partition("\n")[0] == words
    assert not words or ran.stdout.rstrip().endswith("in block"), "the block's call is the last"


def _nothing() -> None:
    pass


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
        (_threads, "the number of threads of Python"),
        (_type, "the default type"),
        (_function, "functions of torch.nn.functional"),
    ],
)
def test_what_a_block_leaves_otherwise_is_named(
    block: Callable[[], None], named: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    import torch

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.nn.functional, "silu", torch.nn.functional.silu)
    environ, kind = dict(os.environ), torch.get_default_dtype()
    _WAIT.clear()
    before = own_doing.surroundings()
    try:
        block()
        found = own_doing.changes(before, own_doing.surroundings())
    finally:
        os.environ.clear()
        os.environ.update(environ)
        torch.set_default_dtype(kind)
        _WAIT.set()
    assert (named in found) if named else found == []


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
