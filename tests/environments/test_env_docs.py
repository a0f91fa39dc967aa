"""docs/environments.md: its commands are commands, its orders are understood."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from conformance.cli import app
from conformance.environments import each_release, load, read_order

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "environments.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", TEXT, re.DOTALL)
COMMANDS = [
    line.split("#")[0].strip()
    for kind, text in BLOCKS
    for line in text.splitlines()
    if kind == "sh"
]


def option(line, name):
    words = shlex.split(line)
    return [words[at + 1] for at, word in enumerate(words) if word == name]


@pytest.mark.parametrize("line", COMMANDS)
def test_every_command_of_the_page_is_one(line):
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("conformance", words)


@pytest.mark.parametrize("line", [line for line in COMMANDS if "--env" in line])
def test_every_order_of_the_page_is_understood(line):
    declared = load(ROOT / "environments.yaml")
    for text in option(line, "--env"):
        for one in each_release(text, lambda _: ("0.8.0", "0.8.1", "0.28.0", "0.30.0")):
            assert read_order(one, declared).name


def test_the_declared_example_is_read(tmp_path):
    (text,) = [text for kind, text in BLOCKS if kind == "yaml"]
    path = tmp_path / "environments.yaml"
    path.write_text(text)
    assert list(load(path)) == ["vllm-0.28"]
