"""Tests that share a fixture which starts engines run on one worker of pytest-xdist."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.conftest import SHARED, GroupScheduling

ROOT = Path(__file__).parents[2]
FOLDERS = {"llama": "end_to_end", "broken": "end_to_end", "lab": "engines"}


def arguments(path: Path) -> set[str]:
    functions = (
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)
    )
    return {each.arg for function in functions for each in function.args.args}


def group_of(path: Path) -> str:
    scheduling = GroupScheduling.__new__(GroupScheduling)
    return scheduling._split_scope(f"{path.relative_to(ROOT).as_posix()}::test_one[a::b]")


@pytest.mark.parametrize("fixture", FOLDERS)
def test_who_shares_a_fixture_with_others_is_in_a_group_of_it(fixture: str) -> None:
    files = (ROOT / "tests" / FOLDERS[fixture]).rglob("test_*.py")
    sharing = {path: arguments(path) for path in files if fixture in arguments(path)}
    apart = [
        path.name for path, given in sharing.items() if group_of(path) not in given & {*SHARED}
    ]
    assert len(sharing) > 1
    assert apart == []


def test_any_other_file_is_a_group() -> None:
    assert group_of(Path(__file__)) == "tests/packaging/test_distribution.py"
