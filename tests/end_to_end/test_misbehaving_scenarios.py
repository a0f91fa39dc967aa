"""Blocks that do what no block should: the verdict is theirs, and the next cell is unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.records import CellResult, Side, Verdict
from tests.end_to_end.conftest import conformance

Cells = dict[str, CellResult]

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MISBEHAVING = Path(__file__).parent / "misbehaving_scenarios"
COLUMNS = ("hf", "vllm-pp1", "vllm-pp2", "vllm-async", "vllm-serve")

#: Where nothing is said the block does what it should besides, and passes.
EXPECTED = {
    "ends": Verdict.CRASH,
    "stops": Verdict.CRASH,
    "hangs": Verdict.TIMEOUT,
    "exits": Verdict.ERROR,
    "interrupts": Verdict.ERROR,
    "allocates": Verdict.ERROR,
    "patches": Verdict.WRONG,
    "scales": Verdict.WRONG,
    "hooks": Verdict.WRONG,
}

#: What they leave otherwise, by words that its name holds. An engine that has no descriptors left
#: does not come to the end of the cell.
LEFT = {
    "closes": "descriptors",
    "forks": "child processes",
    "moves": "working directory",
    "patches": "functions of torch",
    "scales": "the engine's weights",
    "hooks": "hooks of the engine's modules",
    "seeds": "the default type",
    "threads": "threads",
}


@pytest.fixture(scope="module", params=COLUMNS)
def cells(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cells:
    ran = conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", "-b", request.param, "--precision", "float32"),
        *("--timeout", "8", "-j", "1", "--scenarios", str(MISBEHAVING)),
    )
    return {cell.scenario: cell for cell in ran.results.cells}


def test_each_has_its_verdict_and_the_cells_after_it_pass(cells: Cells) -> None:
    for name, cell in cells.items():
        if name == "closes" and cell.backend != "hf":
            # Its server hears nobody any more, and says so to nobody.
            ended = {Verdict.CRASH, Verdict.ERROR, Verdict.TIMEOUT}
            assert cell.verdict in ended, f"{cell.id}: {cell.reason}"
        elif name in EXPECTED:
            assert cell.verdict is EXPECTED[name], f"{cell.id}: {cell.reason}"
        else:
            assert cell.verdict.passes, f"{cell.id}: {cell.verdict}: {cell.reason}"


def test_the_blame_is_the_scenarios(cells: Cells) -> None:
    failed = [cell for cell in cells.values() if cell.verdict.fails]
    assert {cell.scenario for cell in failed} >= EXPECTED.keys()
    for cell in failed:
        assert cell.attribution is not None
        assert cell.attribution.side is Side.HARNESS, f"{cell.id}: {cell.attribution}"
        assert cell.attribution.evidence.startswith(("raised in ", "its block changed"))


def test_what_a_block_changes_is_said_on_its_cell_alone(cells: Cells) -> None:
    for name, cell in cells.items():
        said = ", ".join(cell.left)
        if name in LEFT:
            assert LEFT[name] in said, cell.id
        elif name not in EXPECTED:
            assert not said, cell.id


def test_the_honest_reads_are_as_if_nothing_had_been(cells: Cells) -> None:
    honest = [cell for name, cell in cells.items() if name.endswith("_after")]
    assert len(honest) == 9
    first = honest[0]
    for cell in honest[1:]:
        figures = [(one.site, one.q_max, one.verdict) for one in cell.observations]
        assert figures == [(one.site, one.q_max, one.verdict) for one in first.observations]
