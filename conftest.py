"""The plan as pytest items, one a cell: `pytest scenarios -m llama -k steering`.

The cells that are selected run together in the same workers as `conformance run` uses;
an item fails with its cell's verdict and reasoning. Every model, backend and scenario is a
marker. Runs are kept under reports/ like any other.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from conformance import manifest
from conformance.manifest import Manifest
from conformance.records import Cell, CellResult, Results, Thresholds
from conformance.scenario import Scenario, discover
from conformance.selection import (
    KNOWN,
    MANIFEST,
    Choice,
    Selected,
    expected,
    select,
)

if TYPE_CHECKING:
    from conformance.runner import Event

ROOT = Path(__file__).parent
SCENARIOS = ROOT / "scenarios"


@cache
def _selected(tier: str) -> Selected:
    return select(Choice(tier=tier, manifest=ROOT / MANIFEST, scenarios=SCENARIOS))


@cache
def _known() -> tuple[Manifest, dict[str, Scenario]]:
    return manifest.load(ROOT / MANIFEST), discover(SCENARIOS)


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("conformance")
    group.addoption("--tier", default="default", help="models of this tier become items")
    group.addoption("--jobs", type=int, default=2, help="groups of cells that run at a time")


def pytest_configure(config: pytest.Config) -> None:
    if not _scenarios_asked_for(config):
        return
    known, scenarios = _known()
    names = [*known.models, *known.backends]
    for marker in [item.id for item in names] + list(scenarios):
        config.addinivalue_line("markers", f"{marker}: cells of the conformance matrix")


def _scenarios_asked_for(config: pytest.Config) -> bool:
    asked = [Path(arg.split("::")[0]).resolve() for arg in config.args]
    return any(path == SCENARIOS or SCENARIOS in path.parents for path in asked)


def pytest_collect_file(file_path: Path, parent: pytest.Collector) -> pytest.Collector | None:
    if file_path.parent == SCENARIOS and file_path.stem in _known()[1]:
        return ScenarioFile.from_parent(parent, path=file_path)
    return None


class ScenarioFile(pytest.File):
    """One scenario; its cells on every default backend are the items."""

    def collect(self) -> Iterator[pytest.Item]:
        for cell in _selected(self.config.getoption("--tier")).cells:
            if cell.scenario == self.path.stem:
                yield CellItem.from_parent(self, name=cell.id, cell=cell)


class WrongVerdict(Exception):
    """A cell that did not pass."""


class CellItem(pytest.Item):
    def __init__(self, *, cell: Cell, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.cell = cell
        for marker in (cell.model, cell.backend, cell.scenario):
            self.add_marker(marker)

    def runtest(self) -> None:
        results = _results(self.session)
        [result] = [one for one in results.cells if one.id == self.cell.id]
        if result.verdict.neutral:
            pytest.skip(f"{result.verdict}: {result.reason}")
        if result.expected:
            pytest.xfail(f"{result.verdict}: {result.expected}")
        if not result.verdict.passes:
            raise WrongVerdict(_reasoning(results, result))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, WrongVerdict):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.cell.id


def _reasoning(results: Results, cell: CellResult) -> str:
    """What `conformance show` says of the cell, its traceback and the command to run it again."""
    from conformance.report import terminal

    lines = [*terminal.explanation(results, cell), cell.detail[-4000:], f"again: {cell.command}"]
    return "\n".join(line for line in lines if line)


RESULTS = pytest.StashKey[Results]()


def _results(session: pytest.Session) -> Results:
    """The verdicts on all selected cells: run once, when the first of them is asked for."""
    if RESULTS not in session.stash:
        session.stash[RESULTS] = _run(session)
    return session.stash[RESULTS]


def _run(session: pytest.Session) -> Results:
    from conformance import execution
    from conformance.checkpoints import cache_folder
    from conformance.runner import Limits

    selected = _selected(session.config.getoption("--tier"))
    cells = tuple(item.cell for item in session.items if isinstance(item, CellItem))
    run = execution.begin(
        ROOT / "reports",
        selected.models,
        selected.columns,
        cells,
        scenarios=SCENARIOS,
        thresholds=Thresholds(),
        jobs=session.config.getoption("--jobs"),
    )
    finished = execution.execute(
        run,
        _known()[1],
        cache=cache_folder(),
        limits=Limits(),
        jobs=session.config.getoption("--jobs"),
        on_event=_quiet,
        known=expected(ROOT / KNOWN),
    )
    if finished.results is None:
        raise KeyboardInterrupt
    return finished.results


def _quiet(event: Event) -> None:
    """pytest shows its own progress."""
