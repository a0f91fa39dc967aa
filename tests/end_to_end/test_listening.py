"""While engines run, nothing of theirs can be reached from another machine."""

from __future__ import annotations

import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest

from conformance.processes import sessions
from tests.end_to_end.conftest import ROOT

pytestmark = pytest.mark.engine

#: Seconds between two looks: an engine is open for longer, and needs the processor itself.
LOOK = 0.5


@pytest.mark.parametrize("backend", ["vllm-pp2", "vllm-serve"])
def test_nothing_listens_to_other_machines(backend: str, tmp_path: Path) -> None:
    command = ["run", "-m", "llama", "-b", backend, "-k", "clean and alone", "--reports", tmp_path]
    process = subprocess.Popen(
        [sys.executable, "-m", "conformance", *map(str, command)],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    seen: set[str] = set()
    while process.poll() is None:
        seen |= sessions.listening(sessions.descendants(process.pid))
        with suppress(subprocess.TimeoutExpired):
            process.wait(LOOK)
    assert process.returncode == 0, process.communicate()[0]
    assert any(place.startswith("127.") for place in seen), f"nothing was seen: {seen}"
    assert [place for place in seen if sessions.reached_from_outside(place)] == []
