"""Traces that do something else than their reference must be found out, on real engines."""

from __future__ import annotations

import pytest

from conformance.records import CellResult, Side, Verdict
from tests.end_to_end.conftest import Ran

pytestmark = pytest.mark.engine

EXPECTED = {
    "correct_read": {Verdict.MATCH, Verdict.EXACT},
    "correct_write": {Verdict.MATCH, Verdict.EXACT},
    "layer_off": {Verdict.WRONG, Verdict.ALIASED},
    "doubled": {Verdict.WRONG},
    "short_rows": {Verdict.STRUCTURE},
    "lost_key": {Verdict.MISSING},
    "not_a_number": {Verdict.NONFINITE},
    "half_precision": {Verdict.DRIFT, Verdict.WRONG, Verdict.DTYPE},
    "swapped_prompts": {Verdict.WRONG},
    "raises": {Verdict.ERROR},
    "nothing": {Verdict.UNKNOWN},
    "no_effect": {Verdict.VACUOUS},
    "dropped_write": {Verdict.DROPPED},
    "half_write": {Verdict.MISSCALED},
    "twice_write": {Verdict.MISSCALED},
    "first_prompt_only": {Verdict.PARTIAL},
}


BACKENDS = ("hf", "vllm-pp1", "vllm-pp2")


@pytest.fixture(scope="module")
def cells(broken: Ran) -> dict[tuple[str, str], CellResult]:
    """By scenario and backend."""
    cells = broken.results.cells
    return {(cell.scenario, cell.backend): cell for cell in cells if cell.scenario in EXPECTED}


def test_each_is_given_its_verdict(cells: dict[tuple[str, str], CellResult]) -> None:
    assert set(cells) == {(name, backend) for name in EXPECTED for backend in BACKENDS}
    wrong = {
        f"{cell.id}: {cell.verdict}": cell.reason
        for cell in cells.values()
        if cell.verdict not in EXPECTED[cell.scenario]
    }
    assert wrong == {}


#: What only a trace can do: raise itself, observe nothing, or write nothing.
ITS_OWN = {Verdict.ERROR, Verdict.UNKNOWN, Verdict.VACUOUS}


def test_the_fault_is_the_scenarios_or_it_is_said_that_it_may_be(
    cells: dict[tuple[str, str], CellResult],
) -> None:
    for cell in cells.values():
        if cell.verdict.passes:
            assert cell.attribution is None, cell.id
            continue
        assert cell.attribution is not None, cell.id
        side = Side.HARNESS if cell.verdict in ITS_OWN else Side.UNDECIDED
        assert cell.attribution.side is side, f"{cell.id}: {cell.attribution}"
        if side is Side.UNDECIDED:
            assert "the scenario or its reference" in cell.attribution.evidence


def test_a_dropped_write_says_where_on_what_and_how_surely(
    cells: dict[tuple[str, str], CellResult],
) -> None:
    for backend in BACKENDS:
        said = f"the write at layer 2 had no effect on {backend} (gain 0.00 ± "
        assert cells["dropped_write", backend].diagnosis.startswith(said)


def test_the_run_fails(broken: Ran) -> None:
    assert broken.code == 1, broken.output[-2000:]
