"""What a script of its own holds of the package: whole files, and every one that they import."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Mapping
from pathlib import Path

import pytest

import conformance
from conformance.engines import ENGINES
from conformance.repro import package
from tests.repro.conftest import ROOT

COLUMNS = ("hf", "vllm", "vllm-async", "vllm-serve")


def read_back(files: Mapping[str, str]) -> object:
    [assignment] = ast.parse("\n".join(package.literal(files))).body
    assert isinstance(assignment, ast.Assign)
    return ast.literal_eval(assignment.value)


@pytest.mark.parametrize("engine", COLUMNS)
def test_files_are_whole_and_come_back_as_they_are(engine: str) -> None:
    """So an attribute whose name is known only when the trace runs is there."""
    files = package.needed(engine).files
    for name, text in files.items():
        assert text == (ROOT / name).read_text(encoding="utf-8")
    assert read_back(files) == files


@pytest.mark.parametrize("engine", COLUMNS)
def test_all_that_is_imported_is_there(engine: str) -> None:
    files = package.needed(engine).files
    assert f"{ENGINES[engine].partition(':')[0].replace('.', '/')}.py" in files
    wanted = {
        node.module
        for text in files.values()
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("conformance")
    }
    for module in filter(None, wanted):
        spec = importlib.util.find_spec(module)
        assert spec is not None and spec.origin is not None
        assert Path(spec.origin).relative_to(ROOT).as_posix() in files


def test_one_engine_brings_no_other() -> None:
    of_hf = package.needed("hf")
    assert "conformance/engines/vllm/engine.py" not in of_hf.files
    assert "vllm" not in of_hf.imports
    assert "vllm" in package.needed("vllm").imports
    assert {"torch", "transformers", "nnsight"} <= set(of_hf.imports)


def test_what_a_scenario_imports_of_the_package_comes_along() -> None:
    module = "conformance/report/words.py"
    assert module not in package.needed("hf").files
    assert module in package.needed("hf", ["from conformance.report.words import number"]).files


def test_quotes_and_backslashes_survive() -> None:
    files = {"a.py": 'x = """\\n"""\n', "b.py": "", "c.py": "'\\\\'\\\n"}
    assert read_back(files) == files


def test_a_version_is_said_where_it_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conformance, "__version__", "1.2.3")
    assert package.named() == "conformance 1.2.3"
    monkeypatch.setattr(conformance, "__version__", conformance.UNBUILT)
    assert package.named() == "conformance"
    assert next(package.literal({"a": ""})) == "#: The files of conformance that this needs."
