"""Other libraries, each in the environment that environments.yaml declares: minutes to build."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from conformance.engines import LIBRARIES
from conformance.spec.records import Verdict
from tests.end_to_end.conftest import conformance

#: Those that are told writes as data, and so not every one; what they say of the others.
TOLD = {"interp-engine-vllm": "no word for this|no value that a run reads"}

#: A few that are programs, and one that is none.
SCENARIOS = ("read_all", "cross_write", "(steering and middle)", "multigen", "raw")


@pytest.mark.slow
@pytest.mark.engine
@pytest.mark.parametrize("library", LIBRARIES)
def test_a_library_runs_the_scenarios_that_are_programs_and_refuses_others(
    tmp_path: Path, library: str
):
    ran = conformance(
        tmp_path, "run", "-m", "llama", "-b", library, "--precision", "float32",
        *("-k", f"({' or '.join(SCENARIOS)}) and not drawing"),
    )  # fmt: skip
    cells = ran.cells(library)
    refused = {name for name, cell in cells.items() if cell.verdict is Verdict.UNSUPPORTED}
    untold = {name for name in refused if "no program" not in cells[name].reason}
    assert any(name.startswith("raw") for name in refused - untold), ran.output
    assert bool(untold) == (library in TOLD), ran.output
    assert all(re.search(TOLD[library], cells[name].reason) for name in untold)
    passed = {name for name, cell in cells.items() if cell.verdict.passes}
    assert passed == set(cells) - refused and len(passed | untold) > 8, ran.output
