"""SECURITY.md names tests that are there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
NAMED = re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", (ROOT / "SECURITY.md").read_text("utf-8"))


def test_every_threat_is_held_by_a_test() -> None:
    rows = (ROOT / "SECURITY.md").read_text("utf-8").partition("## Threats")[2]
    lines = [line for line in rows.partition("\n## ")[0].splitlines() if line.startswith("| ")]
    assert len(lines) > 10
    for line in lines[2:]:
        assert re.search(r"`tests/[\w/]+\.py::\w+`", line), line


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_a_test_that_is_named_is_there(file: str, name: str) -> None:
    tree = ast.parse((ROOT / file).read_text("utf-8"))
    assert name in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
