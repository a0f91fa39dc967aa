"""docs/ci.md: its expectations are read, its commands exist, its workflow is YAML."""

import re
import shlex
from pathlib import Path

import pytest
import typer
from ruamel.yaml import YAML

from conformance import expectations
from conformance.cli import app

ROOT = Path(__file__).parent.parent
TEXT = (ROOT / "docs" / "ci.md").read_text()
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


COMMANDS = [
    line.split("#")[0].strip()
    for text in blocks("sh")
    for line in text.splitlines()
    if line.startswith("conformance ")
]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_one(line):
    root = typer.main.get_command(app)
    _, verb, *arguments = shlex.split(line)
    command = root.commands[verb]
    command.make_context(verb, arguments)


def test_every_exit_code_is_told():
    told = {int(code) for code in re.findall(r"^\| (\d+) \|", TEXT, re.MULTILINE)}
    from conformance.errors import ExitCode

    assert told == {int(code) for code in ExitCode}
