"""Other libraries, each in the environment that environments.yaml declares: minutes to build."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.engines import LIBRARIES
from conformance.records import Verdict
from tests.end_to_end.conftest import conformance


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_runs_the_scenarios_that_are_programs_and_refuses_others(
    tmp_path: Path, library: str
):
    ran = conformance(
        tmp_path, "run", "-m", "llama", "-b", library, "--precision", "float32",
        "-k", "read_all or cross_write or steering-middle or multigen or raw",
    )  # fmt: skip
    cells = ran.cells(library)
    refused = {name for name, cell in cells.items() if cell.verdict is Verdict.UNSUPPORTED}
    assert refused and all(name.startswith("raw") for name in refused), ran.output
    assert all("no program" in cells[name].reason for name in refused)
    passed = {name for name, cell in cells.items() if cell.verdict.passes}
    assert passed == set(cells) - refused and len(passed) > 8, ran.output
