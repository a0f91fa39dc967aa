"""The pages on gates: their expectations are read, their commands exist, the workflow is YAML."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from conformance.errors import ExitCode
from conformance.judge import expectations
from tests.docs.test_commands_docs import find_error

ROOT = Path(__file__).parents[2]
PAGES = ("ci", "known", "upgrade", "bisect")
TEXT = "\n".join((ROOT / "docs" / f"{page}.md").read_text() for page in PAGES)
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)


def blocks(language):
    return [text for kind, text in BLOCKS if kind == language]


def test_the_example_entry_is_read(tmp_path):
    (text,) = [text for text in blocks("yaml") if text.startswith("known:")]
    path = tmp_path / "known.yaml"
    path.write_text(text)
    (entry,) = expectations.load(path).entries
    assert entry.when.versions == {"vllm": ">=0.28,<0.33", "nnsight": "<0.9"}


def test_the_workflow_is_yaml_and_keeps_what_the_gate_writes():
    (text,) = [text for text in blocks("yaml") if text.startswith("name:")]
    steps = YAML(typ="safe").load(text)["jobs"]["gate"]["steps"]
    (gate,) = [step["run"] for step in steps if " gate " in step.get("run", "")]
    assert "--to gate" in gate
    assert any("gate/" in step.get("with", {}).get("path", "") for step in steps)


#: In the steps of a workflow; `test_commands_docs` has those of a shell.
COMMANDS = {
    found[1].strip()
    for text in blocks("yaml")
    for line in text.splitlines()
    if (found := re.match(r"(?:\s*- (?:run: )?)?(?:\.venv/bin/)?(conformance [^#]+)", line))
}


def test_every_command_of_a_workflow_is_one():
    assert {line: error for line in COMMANDS if (error := find_error(line))} == {}
    assert {"conformance gate --to gate", "conformance validate"} <= COMMANDS


def test_every_exit_code_is_told():
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    assert told == {int(code) for code in ExitCode}


#: How a block begins, and the schema of what it is.
SCHEMAS = {
    "name: conformance": "vendor.github-workflows",
    "# .github/workflows/": "vendor.github-workflows",
    "# .gitlab-ci.yml": "vendor.gitlab-ci",
}


@pytest.mark.parametrize("start", SCHEMAS)
def test_what_is_to_be_copied_fits_its_schema(start, tmp_path):
    (text,) = [text for text in blocks("yaml") if text.startswith(start)]
    (tmp_path / "block.yml").write_text(text)
    done = subprocess.run(
        [sys.executable, "-m", "check_jsonschema", "--builtin-schema", SCHEMAS[start], "block.yml"],
        cwd=tmp_path, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
