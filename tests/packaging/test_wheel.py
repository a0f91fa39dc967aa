"""The wheel: what it holds, and what it does in a fresh environment and an empty folder."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from conformance.runner.environments import uv
from conformance.spec import checkpoints

ROOT = Path(__file__).parents[2]

EMPTY = "an empty one"

#: A wheel is built, installed, or both: tens of seconds, and an index is asked.
pytestmark = pytest.mark.slow


def run(*words: object, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        list(map(str, words)), cwd=cwd, capture_output=True, text=True, check=False, timeout=600,
        env={**uv.environment(), **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def program() -> Path:
    return uv.program(checkpoints.cache_folder())


@pytest.fixture(scope="module")
def wheel(program, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    done = run(program, "build", "--wheel", "--quiet", "--out-dir", folder, ROOT, cwd=folder)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


def test_the_wheel_holds_what_a_run_needs_and_no_more(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    tracked = subprocess.check_output(
        ["git", "ls-files", "conformance", "scenarios"], cwd=ROOT, text=True
    ).split()
    inside = "conformance" + "/packaged"
    scenarios = f"{inside}/built_in_scenarios"
    wanted = {name.replace("scenarios/", f"{scenarios}/", 1) if name.startswith("scenarios/")
              else name for name in tracked}  # fmt: skip
    wanted |= {f"{inside}/{name}" for name in ("models.yaml", "known.yaml", "environments.yaml")}
    wanted |= {f"{inside}/cpu.txt", "conformance_pytest.py", "conformance_command.py"}
    wanted |= {"conformance/_version.py"}
    assert {name for name in names if ".dist-info/" not in name} == wanted


@pytest.fixture(scope="module")
def place(program, wheel, tmp_path_factory) -> Path:
    """An environment that has the wheel and nothing else, in a folder with spaces in its path."""
    folder = tmp_path_factory.mktemp("a fresh") / "place"
    venv = folder / "its environment"
    for words in (
        ("venv", "--python", sys.executable, venv),
        ("pip", "install", "--python", venv / "bin/python", *uv.sources(()), wheel),
    ):
        done = run(program, *words, "--quiet", cwd=ROOT)
        assert done.returncode == 0, done.stderr
    (folder / EMPTY).mkdir()
    return folder


def size(folder: Path) -> float:
    """MiB."""
    files = (Path(path, name) for path, _, names in os.walk(folder) for name in names)
    return sum(file.lstat().st_size for file in files) / 2**20


def test_the_tool_is_small(place):
    assert size(place / "its environment") < 60
    assert not list((place / "its environment").glob("lib/python3*/site-packages/torch"))


def test_a_project_of_ones_own_in_an_empty_folder(place):
    tool = place / "its environment" / "bin" / "conformance"
    folder = place / EMPTY

    def shell(*words: str) -> str:
        # Nothing of this repository is in the way: another HOME, and no cache that is there.
        done = run(tool, *words, cwd=folder, HOME=str(place), CONFORMANCE_CACHE="", PYTHONPATH="")
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    assert "no engine yet" in shell("--version")
    assert len(shell("list", "-m", "llama", "-b", "hf").splitlines()) > 50
    shell("init")
    assert "conformance_scenarios" in shell("validate")
    assert shell("list", "-m", "my-model", "-k", "halve and hf").splitlines() == [
        "halve[my-model-hf-first]",
        "halve[my-model-hf-middle]",
    ]
    assert "there are none" in shell("env", "list")


def test_the_plug_in_is_there(program, place):
    python = place / "its environment" / "bin" / "python"
    run(program, "pip", "install", "--quiet", "--python", python, "pytest", cwd=ROOT)
    done = run(
        python, "-m", "pytest", "-q", "--collect-only", "--conformance-backend", "hf",
        "--conformance-model", "llama", "--conformance-cells", "ablation", cwd=place / EMPTY,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "conformance::ablation[llama-hf-first]" in done.stdout
