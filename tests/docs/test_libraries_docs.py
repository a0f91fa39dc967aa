"""docs/libraries.md and the scripts beside it: all are named, run alone, and say what is pinned."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from ruamel.yaml import YAML

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "libraries.md").read_text(encoding="utf-8")
SCRIPTS = sorted((ROOT / "docs" / "libraries").glob("*.py"))
OURS = {"conformance", "conformance_command", "conformance_pytest", "scenarios", "tests"}


def _pins() -> set[str]:
    """`library version` for each environment of a library."""
    read = YAML(typ="safe").load((ROOT / "environments.yaml").read_text(encoding="utf-8"))
    return {
        f"{required.name} {str(required.specifier).removeprefix('==')}"
        for environment in read["environments"].values()
        if environment.get("engines") is False or "regardless" in environment
        for required in map(Requirement, environment["requirements"])
    }


def _imported(tree: ast.Module) -> set[str]:
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module or ".")
    return {name.partition(".")[0] for name in names}


def test_the_page_names_the_scripts_that_there_are():
    findings = PAGE.partition("## What was found")[2]
    assert set(re.findall(r"`(\w+\.py)`", findings)) == {path.name for path in SCRIPTS}


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_needs_the_library_alone_and_says_the_version_that_is_pinned(path: Path):
    tree = ast.parse(path.read_text(encoding="utf-8"))
    imported = _imported(tree)
    assert not imported & OURS
    assert {"transformer_lens", "nnterp", "pyvene", "interp_engine", "vllm_lens"} & imported
    named = (ast.get_docstring(tree) or "").replace("TransformerLens", "transformer-lens")
    assert named.startswith(tuple(_pins())), named
