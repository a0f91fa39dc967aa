"""A file that cannot be checked ends in a clear sentence, with the right exit code."""

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.check import source
from conformance.errors import ConformanceError, ExitCode

ROOT = Path(__file__).parent.parent.parent

#: Files that cannot be read as a check's, and a part of what is said. None of them starts anything.
UNREADABLE = {
    "syntax.py": (b"x = 1\ndef trace(lm:\n", "syntax.py:2"),
    "no_function.py": (b"x = 1\n", "has neither `trace(lm)`"),
    "binary.py": (bytes(range(256)), "cannot be read"),
    "nul.py": (b"def trace(lm):\n    return {}\0\n", "is no Python"),
    "empty.py": (b"", "has neither `trace(lm)`"),
}


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_file_that_is_none_is_refused_before_anything_is_started(name, tmp_path):
    content, words = UNREADABLE[name]
    (tmp_path / name).write_bytes(content)
    with pytest.raises(ConformanceError) as caught:
        source.read(tmp_path / name)
    assert caught.value.code is ExitCode.BAD_INPUT
    assert words in str(caught.value)


def test_a_folder_is_refused_with_exit_code_two(tmp_path):
    command = [sys.executable, "-m", "conformance.cli", "check", str(tmp_path), "-m", "llama"]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "Is a directory" in ran.stderr and "Traceback" not in ran.stderr
