"""The traces that docs/check.md shows: each is a file that can be checked, and is the same."""

import re
from pathlib import Path

import pytest

from bench import check_examples, porting_table
from conformance.spec.inputs import user_file

ROOT = Path(__file__).parent.parent.parent.parent
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
@pytest.mark.parametrize("shown", [True, False], ids=["docs", "porting"])
def test_every_trace_that_is_shown_and_every_pair_is_the_same_on_both_sides(tmp_path, *, shown):
    pairs = files(tmp_path) if shown else sorted((ROOT / "examples" / "porting").glob("*.py"))
    paths = list(pairs)
    _, answers = check_examples.check(
        paths, "llama", ("vllm-pp1", "vllm-pp2"), "--reports", str(tmp_path / "checks")
    )
    said = {key: one["answer"] for key, one in answers.items()}
    assert len(said) == 2 * len(paths)
    assert {key: words for key, words in said.items() if not words.startswith("same")} == {}
