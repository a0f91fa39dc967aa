"""Runs of the real command on real engines, shared by the tests of this folder."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from conformance.records import CellResult, Results
from conformance.store import RunFolder, open_run
from tests import ours

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Ran:
    """A finished command: its exit code, all it printed, and the run it left behind."""

    code: int
    output: str
    reports: Path

    @property
    def folder(self) -> RunFolder:
        return open_run(self.reports)

    @property
    def results(self) -> Results:
        return self.folder.results()

    def cells(self, backend: str = "") -> dict[str, CellResult]:
        """By `scenario-case`, of one backend; by id of all."""
        cells = self.results.cells
        if not backend:
            return {cell.id: cell for cell in cells}
        return {f"{c.scenario}-{c.case}": c for c in cells if c.backend == backend}


def conformance(reports: Path, *arguments: str) -> Ran:
    """Run the command as a user does, with reports of its own."""
    done = subprocess.run(
        [sys.executable, "-m", "conformance", *arguments, "--reports", str(reports)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    return Ran(done.returncode, done.stdout + done.stderr, reports)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    """Every scenario that one engine load can run, on a tiny llama and every default backend;
    without what nnsight is known to lose, and what transformers does not have.
    """
    cells = "not (appended or chunked or preempt or kept or extract or samples)"
    reports = tmp_path_factory.mktemp("reports")
    own = str(ours.copied(tmp_path_factory.mktemp("ours")))
    wanted = ("-m", "llama", "-j", "2", "-k", cells)
    return conformance(reports, "run", *wanted, "--scenarios", own)
