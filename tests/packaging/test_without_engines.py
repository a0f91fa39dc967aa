"""What needs no engine runs where none is installed: no torch, no numpy, no vLLM."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.runner.store import RunFolder, RunPlan
from conformance.spec.records import Footer, Model, Thresholds
from tests.known_runs import CELLS, results

ROOT = Path(__file__).parents[2]

#: Runs verbs, one a line of its input, as if no engine were installed.
_SHELL = """
import importlib.machinery, sys

HIDDEN = {"torch", "numpy", "pandas", "safetensors", "transformers", "nnsight", "vllm"}

class Finder(importlib.machinery.PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        hidden = name.partition(".")[0] in HIDDEN
        return None if hidden else super().find_spec(name, path, target)

sys.meta_path[:] = [
    Finder if each is importlib.machinery.PathFinder else each for each in sys.meta_path
]

from conformance.cli import app
from conformance.runner.environments import own

assert not own.is_here()
for line in sys.stdin.read().splitlines():
    words = line.split("|")
    sys.argv = ["conformance", *words]
    try:
        code = app(words, standalone_mode=False, prog_name="conformance")
    except SystemExit as end:
        code = end.code
    print(f"== {words[0]}: {code or 0}", flush=True)
assert not {name for name in sys.modules if name.partition(".")[0] in HIDDEN}
"""


@pytest.fixture
def reports(tmp_path) -> Path:
    """Two judged runs, as they lie on the disk."""
    for name in ("one", "two"):
        folder = RunFolder(tmp_path / "reports" / name)
        folder.path.mkdir(parents=True)
        models = tuple(Model(each, each, ()) for each in ("llama", "mamba2"))
        run = results({})
        folder.write_plan(RunPlan(name, "", "", models, run.columns, tuple(CELLS), Thresholds()))
        count = len(run.cells)
        run = replace(run, run=replace(run.run, id=name), footer=Footer(count, count, {}, 0))
        folder.write_results(run)
    return tmp_path / "reports"


def test_every_verb_that_needs_no_engine(reports, tmp_path):
    known = tmp_path / "known.yaml"
    known.write_text("known: []\n")
    mine = f"--reports|{reports}"
    verbs = {
        "list|-m|llama": 0,
        "validate": 0,
        f"show|{CELLS[0].id}|--run|one|{mine}": 0,
        f"report|two|{mine}": 0,
        f"diff|one|two|{mine}": 0,
        f"gate|two|--known|{known}|{mine}": 0,
        f"known|update|two|--known|{known}|{mine}": 0,
        "schema": 0,
        "env|list": 0,
        "init|new project": 0,
    }
    done = subprocess.run(
        [sys.executable, "-c", _SHELL],
        input="\n".join(verbs), cwd=tmp_path, capture_output=True, text=True, check=False,
        env={"PATH": "", "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    found = [line for line in done.stdout.splitlines() if line.startswith("== ")]
    assert found == [f"== {verb.split('|')[0]}: {code}" for verb, code in verbs.items()], (
        done.stdout + done.stderr
    )
    assert done.returncode == 0, done.stderr
