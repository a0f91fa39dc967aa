"""A signal that comes before a command's first line of ours, or after its last: no traceback."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import PATIENCE

EARLY = """
import os, signal, sys

class Finder:
    def find_spec(self, name, *_):
        if name == "{module}":
            os.kill(os.getpid(), signal.{signal})

sys.meta_path.insert(0, Finder())
from conformance_command import main
main()
"""
LATE = """
import atexit, os, signal, sys
from conformance_command import main
atexit.register(os.kill, os.getpid(), signal.{signal})
sys.argv = ["conformance", *{arguments}]
main()
"""
BETWEEN = """
from conformance import cli
def app(**_):
    raise KeyboardInterrupt
cli.app = app
cli.main()
"""
DROPPED = """
import os, signal, time
from conformance import cli
from conformance_command import main

class Deleted:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0)

def app(**_):
    Deleted()
    until = time.monotonic() + {patience}
    while time.monotonic() < until:
        time.sleep(0.01)

cli.app = app
main()
"""
WRAPPED = """
import os, signal, time
from typing import Annotated
from pydantic import PlainSerializer, TypeAdapter
from conformance import cli
from conformance_command import main

def told(value):
    os.kill(os.getpid(), signal.SIGHUP)
    time.sleep(0)
    return value

def app(**_):
    TypeAdapter(Annotated[int, PlainSerializer(told)]).dump_json(1)

cli.app = app
main()
"""
IMPORTING = """
import os, pathlib, signal, sys, time
import conformance_command
from conformance import cli
conformance_command._PATIENCE = {put_off}
folder = pathlib.Path("{folder}")
(folder / "initialised.py").write_text('''
import os, signal, time
os.kill(os.getpid(), signal.{signal})
until = time.monotonic() + {seconds}
while time.monotonic() < until:
    time.sleep(0.01)
print("whole", flush=True)
''')
sys.path.insert(0, str(folder))

def app(**_):
    import initialised
    time.sleep({patience})

cli.app = app
conformance_command.main()
"""
SIGNALS = ("SIGINT", "SIGTERM", "SIGHUP")


def ended(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )


@pytest.mark.parametrize("module", ["conformance", "conformance.cli"])
@pytest.mark.parametrize("signal", SIGNALS)
def test_a_signal_while_modules_are_imported_is_an_interruption(signal: str, module: str) -> None:
    ran = ended(EARLY.format(signal=signal, module=module))
    assert (ran.returncode, ran.stderr) == (130, "")


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(("arguments", "code"), [(["schema"], 0), (["nothing"], 2)])
def test_a_signal_after_the_last_word_changes_no_exit_code(
    signal: str, arguments: list[str], code: int
) -> None:
    ran = ended(LATE.format(signal=signal, arguments=arguments))
    assert ran.returncode == code
    assert "KeyboardInterrupt" not in ran.stderr


@pytest.mark.parametrize(
    "program",
    [BETWEEN, DROPPED.format(patience=PATIENCE), WRAPPED],
    ids=["between the lines", "that nobody could catch", "that a library makes its own error of"],
)
def test_an_interruption_is_one(program: str) -> None:
    ran = ended(program)
    assert (ran.returncode, ran.stderr) == (130, "")


@pytest.mark.parametrize("signal", SIGNALS)
@pytest.mark.parametrize(("put_off", "seconds", "printed"), [(60, 0.2, "whole\n"), (0.2, 60, "")])
def test_an_import_is_not_interrupted_unless_it_goes_on_for_long(
    tmp_path: Path, signal: str, put_off: float, seconds: float, printed: str
) -> None:
    how = {"signal": signal, "put_off": put_off, "seconds": seconds, "patience": PATIENCE}
    ran = ended(IMPORTING.format(folder=tmp_path, **how))
    assert (ran.returncode, ran.stdout, ran.stderr) == (130, printed, "")


def test_little_room_is_refused_before_a_library_waits_for_more() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "conformance", "list"],
        check=False,
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (2**29, 2**29)),
    )
    assert ran.returncode == 2
    assert "the address space is limited to 0.5 GiB" in ran.stderr
    assert "ulimit -v unlimited" in ran.stderr
