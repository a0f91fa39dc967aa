"""A repository of somebody else's: its CI script, with the steps of the action."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from conformance.commands.validate import validate_project
from conformance.spec.inputs import project
from scripts.annotate import commands

ROOT = Path(__file__).parents[2]
SAMPLE = ROOT / "tests" / "sample_repository"


def test_its_files_are_understood():
    found = validate_project(project.here(SAMPLE))
    assert found.errors == ()


def test_every_step_of_the_action_is_one_of_its_script():
    action = YAML(typ="safe").load(ROOT / "action.yml")
    steps = [step["run"] for step in action["runs"]["steps"] if "run" in step]
    assert [re.search(r"action\.sh\" (\w+)", step)[1] for step in steps] == [
        "install",
        "validate",
        "gate",
    ]
    named = set(re.findall(r"inputs\.([\w-]+)", (ROOT / "action.yml").read_text()))
    assert named == set(action["inputs"])


def test_a_failure_becomes_an_annotation_of_one_line():
    found = commands(
        '<testsuites><testsuite><testcase classname="llama.hf" name="steering[a,b]">'
        '<failure message="wrong: 50% of&#10;it"/></testcase>'
        '<testcase classname="llama.hf" name="fine"/></testsuite></testsuites>'
    )
    assert found == ["::error title=llama.hf steering[a%2Cb]::wrong: 50%25 of%0Ait"]


def gate_of_the_action(folder: Path, arguments: str) -> subprocess.CompletedProcess[str]:
    """What its gate is given, by a tool that only prints that."""
    tool = folder / "venv" / "bin" / "conformance"
    tool.parent.mkdir(parents=True)
    tool.write_text('#!/bin/sh\nprintf "<%s>" "$@"\nexit 1\n')
    tool.chmod(0o755)
    (tool.parent / "python").symlink_to(sys.executable)
    words = {"CONFORMANCE_VENV": str(folder / "venv"), "ARGUMENTS": arguments}
    outputs = {"GITHUB_OUTPUT": str(folder / "output")}
    return subprocess.run(
        ["bash", ROOT / "scripts" / "action.sh", "gate"],
        cwd=folder, env={**os.environ, **words, **outputs}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def test_arguments_are_words_with_quotes_and_the_exit_code_is_an_output(tmp_path):
    done = gate_of_the_action(tmp_path, "-m mine -k 'halve or clean' * $(touch no)")
    given = "<gate><-m><mine><-k><halve or clean><*><$(touch><no)><--to><conformance-gate>"
    assert done.stdout.strip() == given
    assert done.returncode == 1
    assert (tmp_path / "output").read_text().startswith("exit-code=1\n")
    assert not (tmp_path / "no").exists()


def test_arguments_that_are_no_words_start_nothing(tmp_path):
    done = gate_of_the_action(tmp_path, "-k 'halve")
    assert done.returncode != 0 and not done.stdout


@pytest.mark.slow
@pytest.mark.engine
def test_its_ci_is_green(tmp_path):
    copy = tmp_path / "a sample"
    shutil.copytree(SAMPLE, copy)
    output, summary = tmp_path / "output", tmp_path / "summary.md"
    done = subprocess.run(
        [copy / "ci.sh"],
        cwd=tmp_path,
        env={
            **os.environ,
            "TOOL": str(ROOT),
            "PYTEST": str(Path(sys.executable).parent / "pytest"),
            "CONFORMANCE_VENV": str(tmp_path / "the tool"),
            "GITHUB_OUTPUT": str(output),
            "GITHUB_STEP_SUMMARY": str(summary),
        },
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "2 passed, 1 skipped" in done.stdout  # its own test, a cell, and one that is declined
    assert "exit-code=0" in output.read_text()
    assert "The gate is open" in summary.read_text()
    assert "Three layers have no pair in the middle." in summary.read_text()
    assert (copy / "conformance-gate" / "junit.xml").is_file()
