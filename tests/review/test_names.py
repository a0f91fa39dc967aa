"""The name of a class is unique in the package, so that it means one thing wherever it stands."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import conformance

PACKAGE = Path(conformance.__file__).parent


def repeated_classes(package: Path) -> dict[str, list[str]]:
    """Return the modules of each class name that several modules of a package define."""
    modules = defaultdict(set)
    for path in package.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ClassDef):
                modules[node.name].add(path.relative_to(package).as_posix())
    return {name: sorted(paths) for name, paths in modules.items() if len(paths) > 1}


def test_no_class_name_stands_in_two_modules():
    repeated = repeated_classes(PACKAGE)
    assert not repeated, f"rename all but the most public class of each name: {repeated}"


def test_a_repeated_class_name_is_found(tmp_path):
    (tmp_path / "inner").mkdir()
    (tmp_path / "one.py").write_text("class Cell: ...\nclass Row: ...\n")
    (tmp_path / "inner" / "two.py").write_text("def f():\n    class Cell: ...\n")
    assert repeated_classes(tmp_path) == {"Cell": ["inner/two.py", "one.py"]}
