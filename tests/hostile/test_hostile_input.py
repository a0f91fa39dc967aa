"""Every file that is read, and the command line: refused or taken, and nothing else happens.

The whole of it, with 100,000 inputs: bench/hostile_input.py.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from conformance.check import source
from conformance.errors import ConformanceError
from conformance.inputs import text_file
from conformance.planning import selection
from tests.hostile import arguments, readers, watching
from tests.hostile.damage import CANARY

FEW = settings(
    max_examples=12,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)
ENDS = {"accepted", "refused"}


@pytest.mark.parametrize("name", readers.KINDS)
@FEW
@given(data=st.data())
def test_a_file_is_taken_or_refused(name: str, data: st.DataObject, tmp_path: Path) -> None:
    kind = readers.KINDS[name]
    assert readers.tried(kind, data.draw(kind.inputs), tmp_path) in ENDS


@FEW
@given(command=arguments.COMMANDS)
def test_a_command_line_is_taken_or_refused(command: tuple[str, ...], tmp_path: Path) -> None:
    assert arguments.tried(command, tmp_path) in ENDS


def test_a_self_test_needs_the_scenarios_that_its_faults_are_for(tmp_path: Path) -> None:
    assert arguments.tried(("selftest", "-m", "llama"), tmp_path) == "refused"
    # It would begin: nothing else is wrong with it.
    built_in = ("selftest", "-m", "llama", "--scenarios", "built-in")
    assert arguments.tried(built_in, tmp_path) == "accepted"


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("open('../out', 'w')", "open outside"),
        ("os.mkdir('/tmp/hostile-out')", "mkdir outside"),
        (f"import {CANARY}", "imported"),
        ("socket.create_connection(('127.0.0.1', 9))", "connected"),
        ("bytearray(700 << 20)", "MiB"),
    ],
)
def test_what_an_input_does_is_seen(
    code: str, words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with watching.watched(tmp_path) as watch, suppress(OSError, ImportError):
        exec(f"import os, socket\n{code}")
    assert any(words in bad for bad in watch.bad)
    assert not (tmp_path.parent / "out").exists()


def test_a_program_that_would_be_started_is_not(tmp_path: Path) -> None:
    with pytest.raises(watching.Started), watching.watched(tmp_path) as watch:
        subprocess.run(["touch", str(tmp_path / "x")], check=False)
    assert watch.started
    assert not list(tmp_path.iterdir())


def test_words_that_a_locale_has_no_letters_for_end_nothing() -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    ran = subprocess.run(
        [sys.executable, "-m", "conformance", "--help"],
        env={**environment, "PYTHONIOENCODING": "ascii"},
        capture_output=True,
        check=False,
    )
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert b"?" in ran.stdout


def test_what_the_system_refuses_is_said_without_a_traceback(tmp_path: Path) -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "conformance", "report", "x" * 300, "--reports", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert ran.returncode == 2
    assert "File name too long" in ran.stderr
    assert "Traceback" not in ran.stderr


@pytest.mark.parametrize("read", [selection.cells_in, source.read])
def test_a_text_is_read_as_far_as_one_goes(read: Callable[[Path], object], tmp_path: Path) -> None:
    """A device would be read until the machine has no memory left."""
    endless = tmp_path / "endless"
    with endless.open("wb") as file:
        file.truncate(text_file.MOST_BYTES + 1)
    with pytest.raises(ConformanceError, match="has more than 16384 KiB"):
        read(endless)
