"""A crash of pytest, or of a worker of it, after its summary is reported as what it is."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

ROOT = Path(__file__).parents[2]
CRASHES = "import atexit, os, signal\natexit.register(os.kill, os.getpid(), signal.SIGSEGV)\n"
PASSES = "def test_passes(): pass\n"


def supervised(
    folder: Path, text: str, *options: str, every_plugin: bool = False
) -> tuple[int, str]:
    """Return the exit status and the output of two files of tests. Without `every_plugin` no
    plug-in is loaded but those that are tested here: a second for each process.
    """
    (folder / "test_of_one.py").write_text(text)
    (folder / "test_of_two.py").write_text(text)
    command = [sys.executable, "-m", "tests.supervised", f"--rootdir={folder}", str(folder)]
    few = [] if every_plugin else ["-p", "xdist.plugin"]
    alone = {} if every_plugin else {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    done = subprocess.run(
        [*command, "-p", "no:cacheprovider", *few, *options],
        cwd=ROOT, env={**os.environ, **alone}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "worker"])
def test_what_ends_well_ends_with_its_own_status(tmp_path: Path, options: tuple[str, ...]) -> None:
    assert supervised(tmp_path, PASSES, *options)[0] == 0
    code, said = supervised(tmp_path, "def test_fails(): assert 0\n", *options)
    assert code == 1
    assert "ended" not in said


def test_a_crash_after_the_summary_is_named_and_fails(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, CRASHES + PASSES)
    assert code == 139
    assert "2 passed" in said
    assert (
        "ended by signal 11 (SIGSEGV) after its summary, which it closed with exit status 0" in said
    )


def test_a_crash_before_the_summary_is_named_and_fails(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, "import os\ndef test_ends(): os.kill(os.getpid(), 6)\n")
    assert code == 134
    assert "ended by signal 6 (SIGABRT) before its summary" in said


def test_a_workers_crash_after_its_tests_is_named_and_fails(tmp_path: Path) -> None:
    code, said = supervised(tmp_path, CRASHES + PASSES, "-n", "1")
    assert code == 3
    assert "2 passed" in said
    assert "worker gw0 by signal 11 (SIGSEGV)" in said


def test_a_signal_to_it_ends_pytest_too(tmp_path: Path) -> None:
    waits = "import os, signal\ndef test_waits(): print(os.getpid(), flush=True); signal.pause()\n"
    (tmp_path / "test_of_one.py").write_text(waits)
    command = [sys.executable, "-m", "tests.supervised", f"--rootdir={tmp_path}", str(tmp_path)]
    with subprocess.Popen(
        [*command, "-s", "-q", "-p", "no:cacheprovider"], cwd=ROOT, text=True,
        stdout=subprocess.PIPE, env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
    ) as started:  # fmt: skip
        assert started.stdout is not None
        pid = next(int(line) for line in map(str.strip, started.stdout) if line.isdecimal())
        started.terminate()
        assert started.wait() == 128 + signal.SIGTERM
    assert not psutil.pid_exists(pid)


#: What pytest's own process has imported at the end of a whole run, and used a little.
EVERYTHING = """
import pandas, playwright.sync_api, pyarrow.parquet, pytest, ray, torch, zmq
import conformance.engines.vllm.async_engine, conformance.engines.vllm.serve_engine
from nnsight.modeling.vllm.model_runners import GPUModelRunner


def test_computes(tmp_path):
    value = torch.randn(512, 512, requires_grad=True)
    (value @ value).sum().backward()
    pandas.DataFrame({"a": [1]}).to_parquet(tmp_path / "a.parquet")
    assert pandas.read_parquet(tmp_path / "a.parquet")["a"].sum() == 1
    with zmq.Context() as context, context.socket(zmq.PULL) as socket:
        assert not socket.poll(0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("-n", "1")], ids=["alone", "worker"])
def test_a_process_with_every_extension_ends_well(tmp_path: Path, options: tuple[str, ...]) -> None:
    code, said = supervised(tmp_path, EVERYTHING, *options, every_plugin=True)
    assert code == 0, said
    assert "2 passed" in said
