"""The nightly workflow's own steps, in a shell, as called from somebody else's repository."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from conformance.api import results

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "sample_repository"
WORKFLOW = YAML(typ="safe").load(ROOT / ".github" / "workflows" / "nightly.yml")
JOB = WORKFLOW["jobs"]["gate"]
STEPS = {step["name"]: step for step in JOB["steps"] if "run" in step}
VERSIONS = {each["name"]: each["env"] for each in JOB["strategy"]["matrix"]["versions"]}


def test_it_says_where_the_tool_is_and_what_it_is_held_against():
    assert list(STEPS) == ["install", "gate"]
    assert set(VERSIONS) == {"nnsight-main", "vllm-newest"}
    called = WORKFLOW["on"]["workflow_call"]["inputs"]
    assert set(called) == {"arguments", "tool"}


@pytest.mark.slow
@pytest.mark.engine
def test_its_steps_are_green_in_another_repository(tmp_path):
    copy = tmp_path / "a sample"
    shutil.copytree(SAMPLE, copy)
    subprocess.run(["python3", "-m", "venv", tmp_path / "tool"], check=True)
    environment = {
        **os.environ,
        "PATH": f"{tmp_path / 'tool' / 'bin'}:{os.environ['PATH']}",
        "TOOL": str(ROOT),
        "ARGUMENTS": "-m sample-tiny -b vllm-pp1 -k 'halve and first' --precision float32",
        "VERSIONS": f"vllm-newest: {VERSIONS['vllm-newest']}",
    }
    for name, step in STEPS.items():
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", step["run"]],
            cwd=copy, env=environment, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{name}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert "The gate is open" in (copy / "gate" / "summary.md").read_text()
    cells = results("latest", copy / "reports").cells
    assert {cell.backend for cell in cells} == {"vllm-pp1@vllm-newest"}
