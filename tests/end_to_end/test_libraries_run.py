"""Other libraries, each in the environment that environments.yaml declares: minutes to build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.engines import LIBRARIES
from conformance.records import Verdict
from tests.end_to_end.conftest import conformance

#: Those that are told writes as data, and so not every one; what they say of the others.
TOLD = {"interp-engine-vllm": "no word for this|no value that a run reads"}


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
    untold = {name for name in refused if not name.startswith("raw")}
    assert refused - untold and bool(untold) == (library in TOLD), ran.output
    assert all("no program" in cells[name].reason for name in refused - untold)
    assert all(re.search(TOLD[library], cells[name].reason) for name in untold)
    passed = {name for name, cell in cells.items() if cell.verdict.passes}
    assert passed == set(cells) - refused and len(passed) > 8, ran.output
