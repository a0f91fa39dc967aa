"""Blocks that do what no block should: the verdict is theirs, and the next cell is unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.spec.records import CellResult, Side, Verdict
from tests.end_to_end.conftest import conformance

Cells = dict[str, CellResult]

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MISBEHAVING = Path(__file__).parent / "misbehaving_scenarios"
COLUMNS = ("hf", "vllm-pp1", "vllm-pp2", "vllm-async", "vllm-serve")

ENDED = {Verdict.CRASH, Verdict.ERROR, Verdict.TIMEOUT}

#: Where nothing is said the block does what it should besides, and passes.
EXPECTED = {
    "ends": Verdict.CRASH,
    "stops": Verdict.TIMEOUT,
    "hangs": Verdict.TIMEOUT,
    "exits": Verdict.ERROR,
    "interrupts": Verdict.ERROR,
    "allocates": Verdict.ERROR,
    "patches": Verdict.WRONG,
    "scales": Verdict.WRONG,
    "hooks": Verdict.WRONG,
}

#: What they damage, by words that its name holds. An engine that has no descriptors left does not
#: come to the end of the cell.
LEFT = {
    "closes": "descriptors",
    "patches": "what the engine computes",
    "scales": "what the engine computes",
    "hooks": "what the engine computes",
}


@pytest.fixture(scope="module", params=COLUMNS)
def cells(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Cells:
    ran = conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", "-b", request.param, "--precision", "float32"),
        *("--timeout", "8", "-j", "1", "--scenarios", str(MISBEHAVING)),
    )
    cells = ran.results.cells
    return {cell.scenario if cell.case == "all" else cell.case: cell for cell in cells}


def test_each_has_its_verdict_and_the_cells_after_it_pass(cells: Cells) -> None:
    for name, cell in cells.items():
        if name == "closes" and cell.backend != "hf":
            # Its server hears nobody any more, and says so to nobody.
            assert cell.verdict in ENDED, f"{cell.id}: {cell.reason}"
        elif name in EXPECTED:
            assert cell.verdict is EXPECTED[name], f"{cell.id}: {cell.reason}"
        else:
            assert cell.verdict.passes, f"{cell.id}: {cell.verdict}: {cell.reason}"


def test_no_engine_is_blamed(cells: Cells) -> None:
    failed = {name: cell for name, cell in cells.items() if cell.verdict.fails}
    assert failed.keys() >= EXPECTED.keys()
    for name, cell in failed.items():
        assert cell.attribution is not None
        sides = {Side.HARNESS, Side.UNDECIDED}
        assert cell.attribution.side in sides, f"{cell.id}: {cell.attribution}"
        if name in {"hangs", "exits", "interrupts", "allocates"}:
            assert cell.attribution.evidence.startswith("raised in "), cell.id


def test_what_a_block_damages_is_said_on_its_cell_alone(cells: Cells) -> None:
    for name, cell in cells.items():
        said = ", ".join(cell.left)
        if name in LEFT and cell.verdict not in ENDED:
            assert LEFT[name] in said, cell.id
        elif name not in EXPECTED:
            assert not said, cell.id


def test_the_correct_reads_are_as_if_nothing_had_been(cells: Cells) -> None:
    correct = [cell for name, cell in cells.items() if name.endswith("_after")]
    assert len(correct) == 9
    first = correct[0]
    for cell in correct[1:]:
        figures = [(one.site, one.q_max, one.verdict) for one in cell.observations]
        assert figures == [(one.site, one.q_max, one.verdict) for one in first.observations]
