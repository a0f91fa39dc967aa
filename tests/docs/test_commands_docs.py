"""Every page's commands are commands, and those that are not marked as `not run` run.

A mark stands before a block of a shell's lines: `<!-- not run: why -->` for all of it, or
`<!-- not run (run, env build): why -->` for its lines that begin so.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.init.command import FOLDER
from tests import known_runs

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
COLUMNS = ("hf", "vllm-pp2")
BLOCK = re.compile(
    r"(?:^<!-- not run(?: \((?P<some>[^)]*)\))?: [^>]+-->\n(?P<marked>))?"
    r"^```(?:sh|bash|shell|console)\n(?P<lines>.*?)^```",
    re.DOTALL | re.MULTILINE,
)


@dataclass(frozen=True)
class Block:
    """A page's shell block: its commands, and how those begin that are not run ("": all)."""

    page: str
    lines: tuple[str, ...]
    not_run: tuple[str, ...]

    def runs(self, line: str) -> bool:
        return not any(begins(line, mark) for mark in self.not_run)


def begins(line: str, mark: str) -> bool:
    return not mark or f"{line.removeprefix('conformance ')} ".startswith(f"{mark} ")


def blocks(text: str, page: str = "") -> list[Block]:
    found = []
    for match in BLOCK.finditer(text):
        lines = (line.split(" #")[0].strip() for line in match["lines"].splitlines())
        some = tuple(mark.strip() for mark in (match["some"] or "").split(","))
        marks = some if match["marked"] is not None else ()
        commands = tuple(line for line in lines if line and not line.startswith("#"))
        found.append(Block(page, commands, marks))
    return found


def named(block: Block) -> str:
    return f"{block.page}: {block.lines[0]}"


BLOCKS = [block for page in PAGES for block in blocks(page.read_text("utf-8"), page.name)]


def lines(program: str) -> list[tuple[str, str]]:
    """(page, command) of every line that runs this program."""
    every = [(block.page, line) for block in BLOCKS for line in block.lines]
    return [(page, line) for page, line in every if line.startswith(f"{program} ")]


def parse(line: str) -> None:
    """Raises for a verb (KeyError) or an option (click's error) that there is not."""
    command = typer.main.get_command(app)
    words = shlex.split(line)[1:]
    if words == ["--version"]:
        return
    while hasattr(command, "commands"):
        command = command.commands[words.pop(0)]
    command.make_context("conformance", words)


def find_error(line: str) -> str:
    """What `parse` raises for a line; "" for a command."""
    try:
        parse(line)
    except Exception as wrong:  # noqa: BLE001 - click's, and a verb's KeyError
        return str(wrong) or type(wrong).__name__
    return ""


def test_every_command_is_one() -> None:
    found = {(page, line): find_error(line) for page, line in lines("conformance")}
    assert {where: error for where, error in found.items() if error} == {}


def test_every_target_is_one() -> None:
    assert [each for each in lines("make") if shlex.split(each[1])[1] not in TARGETS] == []


def test_every_command_in_a_sentence_is_one() -> None:
    """What it must be given may be left out there."""
    spans = [
        (page.name, " ".join(span.split()))
        for page in PAGES
        for span in re.findall(r"`(conformance [a-z-][^`]*)`", page.read_text("utf-8"))
    ]
    found = {(page, span): find_error(span) for page, span in spans}
    left_out = re.compile(r"Missing parameter|.* requires an argument")
    wrong = {where: each for where, each in found.items() if each and not left_out.match(each)}
    assert wrong == {} and len(spans) > 30


@pytest.mark.parametrize("line", ["conformance rum", "conformance run --no-such"])
def test_a_command_that_is_none_is_found(line: str) -> None:
    assert re.match(r"^'rum'$|[Nn]o such option", find_error(line))


def test_the_pages_have_commands() -> None:
    assert len(lines("conformance")) > 40
    assert {"README.md", "CONTRIBUTING.md"} <= {page for page, _ in lines("make")}
    assert sum(block.runs(line) for block in BLOCKS for line in block.lines) > 20


def test_every_mark_is_of_a_line() -> None:
    marks = [(block, mark) for block in BLOCKS for mark in block.not_run]
    of_none = [
        (named(block), mark)
        for block, mark in marks
        if not any(begins(line, mark) for line in block.lines)
    ]
    assert of_none == [] and len(marks) > 20


@pytest.fixture
def stored(tmp_path, monkeypatch) -> Iterator[Path]:
    """A folder with the runs that the pages name."""
    cells = [known_runs.cell("llama", each, "steering", "middle-small-one") for each in COLUMNS]
    results = known_runs.results(cells=cells)
    names = ("RUN_A", "RUN_B", "RUN_CPU", "RUN_GPU", "RUN_BEFORE", "RUN_AFTER", "latest")
    for place in [*(f"reports/{name}" for name in names), "before/latest", "after/latest"]:
        gpu = {"device": "cuda", "devices": ("cuda: some",)} if "GPU" in place else {}
        run = replace(results, environment=replace(results.environment, **gpu))
        known_runs.stored(tmp_path / place, run)
    for name in own_modules():
        monkeypatch.delitem(sys.modules, name)  # of another test's folder
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in own_modules():
        del sys.modules[name]  # of this test's folder


def own_modules() -> list[str]:
    """The modules of a project's scenarios that this process has imported."""
    return [name for name in sys.modules if name.partition(".")[0] == FOLDER]


@pytest.mark.parametrize(
    "block", [block for block in BLOCKS if any(map(block.runs, block.lines))], ids=named
)
def test_a_block_runs(block: Block, stored: Path) -> None:
    for line in filter(block.runs, block.lines):
        program, *words = shlex.split(line)
        if program == "conformance":
            done = CliRunner().invoke(app, words)
            code, told = done.exit_code, f"{done.output}{done.exception}"
        else:
            assert program == "pytest", f"mark it as not run: {line}"
            shell = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *words]
            ran = subprocess.run(shell, cwd=stored, capture_output=True, text=True, check=False)
            code, told = ran.returncode, ran.stdout + ran.stderr
        assert code == 0, f"{line}: {told}"


def test_only_a_mark_keeps_a_command_from_being_run() -> None:
    shell = "```sh\nconformance env build x  # y\nconformance env list\n```\n"
    text = f"<!-- not run (env build): minutes -->\n{shell}"
    [block] = blocks(text)
    assert [block.runs(line) for line in block.lines] == [False, True]
    [block] = blocks(text.replace(" (env build)", ""))
    assert not any(map(block.runs, block.lines))
    [block] = blocks(f"a\n\n{shell}")
    assert all(map(block.runs, block.lines))
