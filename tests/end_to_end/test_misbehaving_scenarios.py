"""Blocks that do what no block should: the verdict is theirs, and the next cell is unharmed."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.records import Side, Verdict
from tests.end_to_end.conftest import Ran, conformance

pytestmark = [pytest.mark.engine, pytest.mark.slow]

MISBEHAVING = Path(__file__).parent / "misbehaving_scenarios"

#: Where nothing is said the block does what it should besides, and passes.
EXPECTED = {
    "ends": Verdict.CRASH,
    "stops": Verdict.CRASH,
    "hangs": Verdict.TIMEOUT,
    "exits": Verdict.ERROR,
    "interrupts": Verdict.ERROR,
    "allocates": Verdict.ERROR,
    "patches": Verdict.WRONG,
}


@pytest.fixture(scope="module")
def hf(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", "-b", "hf", "--precision", "float32", "--timeout", "8"),
        *("--scenarios", str(MISBEHAVING)),
    )


def test_each_has_its_verdict_and_the_cells_after_it_pass(hf: Ran) -> None:
    for cell in hf.results.cells:
        if cell.scenario in EXPECTED:
            assert cell.verdict is EXPECTED[cell.scenario], f"{cell.id}: {cell.reason}"
        else:
            assert cell.verdict.passes, f"{cell.id}: {cell.verdict}: {cell.reason}"


def test_the_end_of_a_process_is_its_blocks_doing(hf: Ran) -> None:
    ended = {name for name, verdict in EXPECTED.items() if verdict is not Verdict.WRONG}
    for cell in hf.results.cells:
        if cell.scenario in ended:
            assert cell.attribution is not None
            assert cell.attribution.side is Side.HARNESS, f"{cell.id}: {cell.attribution}"
            assert cell.attribution.evidence.startswith("raised in"), cell.id


def test_the_honest_reads_are_as_if_nothing_had_been(hf: Ran) -> None:
    honest = [cell for cell in hf.results.cells if cell.scenario.endswith("_after")]
    assert len(honest) == 6
    first = honest[0]
    for cell in honest[1:]:
        figures = [(one.site, one.q_max, one.verdict) for one in cell.observations]
        assert figures == [(one.site, one.q_max, one.verdict) for one in first.observations]
