"""`pytest scenarios -m llama -k steering`: the cells of these scenarios, in the repository itself.

Elsewhere the plug-in collects them: `pytest --conformance-backend vllm-pp2` (docs/pytest.md).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from conformance.pytest_cells import OPTIONS, CellItem, register_markers
from conformance.runner.planning.selection import Choice, Selected, select

ROOT = Path(__file__).parent
SCENARIOS = ROOT / "scenarios"
MANIFEST = ROOT / "models.yaml"


@cache
def _selected(tier: str) -> Selected:
    return select(Choice(tier=tier, manifest=MANIFEST, scenarios=SCENARIOS))


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--tier", default="default", help="cells of this tier become items")
    group.addoption("--jobs", type=int, default=2, help="groups of cells that run at a time")


def pytest_configure(config: pytest.Config) -> None:
    asked = [Path(arg.split("::")[0]).resolve() for arg in config.args]
    if not any(path == SCENARIOS or SCENARIOS in path.parents for path in asked):
        return
    everything = Choice(tier="full", backend=["all"], manifest=MANIFEST, scenarios=SCENARIOS)
    register_markers(config, select(everything).cells)
    places = ("--models", MANIFEST, "--scenarios", SCENARIOS, "--reports", ROOT / "reports")
    how = ("--tier", config.getoption("--tier"), "-j", str(config.getoption("--jobs")))
    config.stash[OPTIONS] = [*map(str, places), *how]


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.parent == SCENARIOS and not file_path.stem.startswith("_"):
        return ScenarioFile.from_parent(parent, path=file_path)
    return None


class ScenarioFile(pytest.File):
    """One scenario; its cells on every default backend are the items."""

    def collect(self) -> Iterator[pytest.Item]:
        for cell in _selected(self.config.getoption("--tier")).cells:
            if cell.scenario == self.path.stem:
                yield CellItem.from_parent(self, name=cell.id, cell=cell)
