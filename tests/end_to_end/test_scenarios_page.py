"""docs/scenarios.md and docs/model-parts.md: every example is a file, and the files run."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

from conformance import authoring
from tests import ours
from tests.end_to_end.conftest import ROOT, Ran, conformance

PAGES = ("scenarios", "model-parts")
TEXT = "\n".join((ROOT / "docs" / f"{page}.md").read_text(encoding="utf-8") for page in PAGES)
FILES = {
    name: f"# {name}\n{source}" if name.endswith(".py") else source
    for name, source in re.findall(r"```(?:python|text)\n# (\S+)\n(.*?)```", TEXT, re.DOTALL)
}
PROTOCOLS = (authoring.LM, authoring.Layer, authoring.Part, authoring.Reference, authoring.Run)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    folder = tmp_path_factory.mktemp("author")
    (folder / "my_scenarios").mkdir()
    for name, source in FILES.items():
        (folder / name).write_text(source)
    subprocess.run([sys.executable, "make_vector.py"], cwd=folder, check=True)
    return conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", "-b", "hf", "--scenarios", str(folder / "my_scenarios")),
    )


@pytest.mark.engine
def test_every_example_passes(examples: Ran) -> None:
    failed = {cell.id: cell.reason for cell in examples.results.cells if not cell.verdict.passes}
    assert failed == {}, examples.output
    assert examples.code == 0


@pytest.mark.engine
def test_every_example_is_run_with_the_cases_that_the_page_names(examples: Ran) -> None:
    cells = set(examples.cells("hf"))
    names = {Path(name).stem for name in FILES if name.endswith(".py")} - {"make_vector"}
    assert {cell.split("-", 1)[0] for cell in cells} == names and len(names) >= 5
    assert {f"steer_last-{case}" for case in ("early-small", "1-large")} <= cells


def used(sources: list[str]) -> set[str]:
    """Every attribute and keyword that these files name."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.arg for node in nodes if isinstance(node, ast.keyword) if node.arg}


def members(protocol: type) -> set[str]:
    return {name for name in vars(protocol) if not name.startswith("_")}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.__name__)
def test_every_member_has_an_example(protocol: type) -> None:
    linked = re.findall(r"\]\(\.\./(scenarios/\w+\.py)\)", TEXT)
    sources = [source for name, source in FILES.items() if name.endswith(".py")]
    sources += [(ROOT / name).read_text(encoding="utf-8") for name in linked]
    assert members(protocol) - used(sources) == set()
    for name in members(protocol):
        assert re.search(rf"\b{name}\b", TEXT), name


def test_our_scenarios_use_nothing_else() -> None:
    """`lm.…`, `model.…` and `run.…` of every scenario are members of a protocol."""
    promised = {
        "lm": members(authoring.LM), "model": members(authoring.Reference),
        "run": members(authoring.Run), "layer": members(authoring.Layer),
        "case": set(authoring.Case.__dataclass_fields__),
    }  # fmt: skip
    for path in ours.files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                allowed = promised.get(node.value.id)
                assert allowed is None or node.attr in allowed, f"{path.name}: {ast.unparse(node)}"
