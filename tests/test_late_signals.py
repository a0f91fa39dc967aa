"""A signal that comes when a command has said all: no traceback, and no death by it."""

from __future__ import annotations

import subprocess
import sys

import pytest

LATE = """
import atexit, os, signal, sys
from conformance import cli
atexit.register(os.kill, os.getpid(), signal.{signal})
sys.argv = ["conformance", *{arguments}]
cli.main()
"""


@pytest.mark.parametrize("signal", ["SIGINT", "SIGTERM", "SIGHUP"])
@pytest.mark.parametrize(("arguments", "code"), [(["schema"], 0), (["nothing"], 2)])
def test_a_signal_after_the_last_word_changes_no_exit_code(
    signal: str, arguments: list[str], code: int
) -> None:
    program = LATE.format(signal=signal, arguments=arguments)
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert ended.returncode == code
    assert "KeyboardInterrupt" not in ended.stderr


def test_an_interruption_between_the_lines_is_one() -> None:
    program = """
import sys
from conformance import cli
def app(**_):
    raise KeyboardInterrupt
cli.app = app
cli.main()
"""
    ended = subprocess.run(
        [sys.executable, "-c", program], check=False, capture_output=True, text=True
    )
    assert (ended.returncode, ended.stderr) == (130, "")
