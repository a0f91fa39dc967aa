"""docs/scenarios.md and docs/model-parts.md: every example is a file, and the files run."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from conformance.spec import authoring
from tests import ours
from tests.end_to_end.conftest import EXAMPLES, PAGES, ROOT, Ran

PROTOCOLS = (authoring.LM, authoring.Layer, authoring.Part, authoring.Reference, authoring.Run)


#: Those of the page's scenarios, by name.
OWN = {Path(name).stem for name in EXAMPLES if name.startswith("my_scenarios/")} - {"prompts"}


@pytest.mark.engine
def test_every_example_passes_with_the_cases_that_the_page_names(llama: Ran) -> None:
    cells = [cell for cell in llama.results.cells if cell.scenario in OWN]
    assert {cell.id: cell.reason for cell in cells if not cell.verdict.passes} == {}
    assert {cell.scenario for cell in cells} == OWN and len(OWN) >= 5
    steered = {cell.case for cell in cells if cell.scenario == "steer_last"}
    assert {"early-small", "1-large"} <= steered


def used(sources: list[str]) -> set[str]:
    """Every attribute and keyword that these files name."""
    nodes = [node for source in sources for node in ast.walk(ast.parse(source))]
    attributes = {node.attr for node in nodes if isinstance(node, ast.Attribute)}
    return attributes | {node.arg for node in nodes if isinstance(node, ast.keyword) if node.arg}


def members(protocol: type) -> set[str]:
    names = {*vars(protocol), *vars(protocol).get("__annotations__", ())}
    return {name for name in names if not name.startswith("_")}


@pytest.mark.parametrize("protocol", PROTOCOLS, ids=lambda each: each.__name__)
def test_every_member_has_an_example(protocol: type) -> None:
    linked = re.findall(r"\]\(\.\./(scenarios/\w+\.py)\)", PAGES)
    sources = [source for name, source in EXAMPLES.items() if name.endswith(".py")]
    sources += [(ROOT / name).read_text(encoding="utf-8") for name in linked]
    assert members(protocol) - used(sources) == set()
    for name in members(protocol):
        assert re.search(rf"\b{name}\b", PAGES), name


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
