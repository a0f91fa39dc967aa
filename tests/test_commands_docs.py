"""Every page's commands are commands: of `conformance` with options that it has, of `make`."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
import typer

from conformance.cli import app

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def lines(program: str) -> list[tuple[str, str]]:
    """(page, command) of every line of a shell block that runs this program."""
    return [
        (page.name, line.split(" # ")[0].split("   #")[0].strip())
        for page in PAGES
        for block in re.findall(r"```sh\n(.*?)```", page.read_text("utf-8"), re.DOTALL)
        for line in block.splitlines()
        if line.startswith(f"{program} ")
    ]


def parse(line: str) -> None:
    """Raises for a verb (KeyError) or an option (click's error) that there is not."""
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    if words == ["--version"]:
        return
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("conformance", words)


@pytest.mark.parametrize(("page", "line"), lines("conformance"))
def test_every_command_is_one(page: str, line: str) -> None:
    parse(line)


@pytest.mark.parametrize(("page", "line"), lines("make"))
def test_every_target_is_one(page: str, line: str) -> None:
    assert shlex.split(line)[1] in TARGETS


@pytest.mark.parametrize("line", ["conformance rum", "conformance run --no-such"])
def test_a_command_that_is_none_is_found(line: str) -> None:
    with pytest.raises(Exception, match=r"^'rum'$|[Nn]o such option"):
        parse(line)


def test_the_pages_have_commands() -> None:
    assert len(lines("conformance")) > 40
    assert {"README.md", "CONTRIBUTING.md"} <= {page for page, _ in lines("make")}
