"""Cells as pytest items: `pytest --conformance-backend vllm-pp2` (docs/pytest.md).

When the first item runs, all cells that pytest selected run together, as in `conformance run`. An
item fails with its cell's verdict and reasoning.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from conformance import api
from conformance.errors import ConformanceError
from conformance.runner.planning import selection
from conformance.spec.records import Cell, Results

#: The verdicts of this session, once its cells have run.
RESULTS = pytest.StashKey[Results]()
#: Additional command-line arguments of the run.
OPTIONS = pytest.StashKey[list[str]]()


class Matrix:
    """The plug-in: it adds the cells that the options select to the user's tests."""

    def __init__(self, config: pytest.Config) -> None:
        if config.getoption("numprocesses", None) or hasattr(config, "workerinput"):
            raise pytest.UsageError("cells run in workers of their own: leave -n out")
        get = config.getoption
        try:
            choice = selection.Choice(
                model=get("conformance_model"),
                backend=get("conformance_backend"),
                tier=get("conformance_tier"),
                expression=get("conformance_cells"),
            )
            self.selected = selection.select(choice)
        except ConformanceError as error:
            raise pytest.UsageError(str(error)) from error
        words = [word for kind in get("conformance_precision") for word in ("--precision", kind)]
        words += ["-j", str(get("conformance_jobs"))] if get("conformance_jobs") else []
        words += ["--tier", choice.chosen_tier]  # it decides which cells run in float32 alone
        config.stash[OPTIONS] = words
        register_markers(config, self.selected.cells)

    @pytest.hookimpl(tryfirst=True)  # -k and -m also select among these items
    def pytest_collection_modifyitems(
        self, session: pytest.Session, items: list[pytest.Item]
    ) -> None:
        parent = Cells.from_parent(session, name="conformance", nodeid="conformance")
        items += [
            CellItem.from_parent(parent, name=cell.id, cell=cell) for cell in self.selected.cells
        ]


def register_markers(config: pytest.Config, cells: Sequence[Cell]) -> None:
    """Register every model, backend and scenario of these cells as a marker."""
    names = [name for cell in cells for name in (cell.model, cell.backend, cell.scenario)]
    for name in dict.fromkeys(names):
        config.addinivalue_line("markers", f"{name}: cells of the conformance matrix")


class Cells(pytest.Collector):
    """The collector of the items."""

    def collect(self) -> list[pytest.Item]:
        return []


class WrongVerdict(Exception):
    """A cell did not pass."""


class CellItem(pytest.Item):
    def __init__(self, *, cell: Cell, **named: Any) -> None:
        super().__init__(**named)
        self.cell = cell
        for marker in (cell.model, cell.backend, cell.scenario):
            self.add_marker(marker)

    def runtest(self) -> None:
        results = _results(self.session)
        [result] = [cell for cell in results.cells if cell.id == self.cell.id]
        if result.verdict.neutral:
            pytest.skip(f"{result.verdict}: {result.reason}")
        if result.expected:
            pytest.xfail(f"{result.verdict}: {result.expected}")
        if result.verdict.fails:
            from conformance.report.terminal_text import explanation

            lines = [*explanation(results, result), result.detail[-4000:]]
            again = f"again: {result.command}"
            raise WrongVerdict("\n".join(line for line in (*lines, again) if line))

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> str:
        if isinstance(excinfo.value, (WrongVerdict, ConformanceError)):
            return str(excinfo.value)
        return str(super().repr_failure(excinfo, style))

    def reportinfo(self) -> tuple[Path, None, str]:
        return self.path, None, self.cell.id


def _results(session: pytest.Session) -> Results:
    """Return the verdicts on all cells of this session, running them on the first call."""
    if RESULTS not in session.stash:
        ids = [item.cell.id for item in session.items if isinstance(item, CellItem)]
        options = session.config.stash.get(OPTIONS, [])
        session.stash[RESULTS] = api.run(cells=ids, options=options)
    return session.stash[RESULTS]
