"""The traces that docs/check.md shows: each is a file that can be checked, and is the same."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from bench import porting_table
from conformance.inputs import user_file

ROOT = Path(__file__).parent.parent.parent
BLOCKS = re.findall(
    r"^```python\n(.*?)^```", (ROOT / "docs" / "check.md").read_text(), re.DOTALL | re.MULTILINE
)


def files(folder):
    for index, block in enumerate(BLOCKS):
        path = folder / f"shown_{index}.py"
        path.write_text(block)
        yield path


def test_every_trace_that_is_shown_is_one_that_can_be_checked(tmp_path):
    read = user_file.read_all(list(files(tmp_path)))
    assert all(file.function_for("vllm") in file.functions for file in read)


def test_the_table_of_what_moves_is_that_of_the_pairs():
    assert porting_table.table() in (ROOT / "docs" / "check.md").read_text()


@pytest.mark.slow
@pytest.mark.engine
def test_both_sides_of_every_pair_are_the_same(tmp_path):
    pairs = sorted(map(str, (ROOT / "examples" / "porting").glob("*.py")))
    command = [sys.executable, "-m", "conformance", "check", *pairs, "-m", "llama", "--json"]
    ran = subprocess.run(
        [*command, "-b", "vllm-pp1", "-b", "vllm-pp2", "--reports", str(tmp_path / "checks")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    said = {(one["file"], one["backend"]): one["answer"] for one in json.loads(ran.stdout)}
    assert len(said) == 2 * len(pairs)
    assert {key: words for key, words in said.items() if not words.startswith("same")} == {}


@pytest.mark.slow
@pytest.mark.engine
def test_every_trace_that_is_shown_is_the_same(tmp_path):
    command = [sys.executable, "-m", "conformance", "check", *map(str, files(tmp_path))]
    columns = ["-b", "vllm-pp1", "-b", "vllm-pp2", "--reports", str(tmp_path / "checks")]
    ran = subprocess.run(
        [*command, "-m", "llama", *columns, "--json"],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    said = {(one["file"], one["backend"]): one["answer"] for one in json.loads(ran.stdout)}
    assert len(said) == 2 * len(BLOCKS)
    assert {key: words for key, words in said.items() if not words.startswith("same")} == {}
