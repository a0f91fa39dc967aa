"""Blocks that do what no block should: the verdict is theirs, and the next cell is unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.records import CellResult, Side, Verdict
from tests.end_to_end.conftest import Ran, conformance

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MISBEHAVING = Path(__file__).parent / "misbehaving_scenarios"
COLUMNS = ("hf", "vllm-pp1", "vllm-pp2")

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


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    backends = [word for column in COLUMNS for word in ("-b", column)]
    return conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", *backends, "--precision", "float32", "--timeout", "8", "-j", "1"),
        *("--scenarios", str(MISBEHAVING)),
    )


def cells(ran: Ran, column: str) -> dict[str, CellResult]:
    return {cell.scenario: cell for cell in ran.results.cells if cell.backend == column}


@pytest.mark.parametrize("column", COLUMNS)
def test_each_has_its_verdict_and_the_cells_after_it_pass(ran: Ran, column: str) -> None:
    for name, cell in cells(ran, column).items():
        if name == "closes" and column != "hf":
            ended = {Verdict.CRASH, Verdict.ERROR}
            assert cell.verdict in ended, f"{cell.id}: {cell.reason}"
        elif name in EXPECTED:
            assert cell.verdict is EXPECTED[name], f"{cell.id}: {cell.reason}"
        else:
            assert cell.verdict.passes, f"{cell.id}: {cell.verdict}: {cell.reason}"


@pytest.mark.parametrize("column", COLUMNS)
def test_the_blame_is_the_scenarios(ran: Ran, column: str) -> None:
    failed = [cell for cell in cells(ran, column).values() if cell.verdict.fails]
    assert {cell.scenario for cell in failed} >= EXPECTED.keys()
    for cell in failed:
        assert cell.attribution is not None
        assert cell.attribution.side is Side.HARNESS, f"{cell.id}: {cell.attribution}"
        assert cell.attribution.evidence.startswith(("raised in ", "its block changed"))


@pytest.mark.parametrize("column", COLUMNS)
def test_what_a_block_changes_is_said_on_its_cell_alone(ran: Ran, column: str) -> None:
    for name, cell in cells(ran, column).items():
        said = ", ".join(cell.left)
        if name in LEFT:
            assert LEFT[name] in said, cell.id
        elif name not in EXPECTED:
            assert not said, cell.id


@pytest.mark.parametrize("column", COLUMNS)
def test_the_honest_reads_are_as_if_nothing_had_been(ran: Ran, column: str) -> None:
    honest = [cell for name, cell in cells(ran, column).items() if name.endswith("_after")]
    assert len(honest) == 8
    first = honest[0]
    for cell in honest[1:]:
        figures = [(one.site, one.q_max, one.verdict) for one in cell.observations]
        assert figures == [(one.site, one.q_max, one.verdict) for one in first.observations]
