"""Traces that do something else than their reference must be found out, on real engines."""

from __future__ import annotations

import pytest

from conformance.spec.records import CellResult, Side, Verdict
from tests.end_to_end.conftest import Ran

pytestmark = pytest.mark.engine

#: Scenario and case → the verdicts that fit.
EXPECTED = {
    "reads-correct": {Verdict.MATCH, Verdict.EXACT},
    "reads-layer_off": {Verdict.WRONG, Verdict.ALIASED},
    "reads-doubled": {Verdict.WRONG},
    "reads-short_rows": {Verdict.STRUCTURE},
    "reads-lost_key": {Verdict.MISSING},
    "reads-not_a_number": {Verdict.NONFINITE},
    "reads-half_precision": {Verdict.DRIFT, Verdict.WRONG, Verdict.DTYPE},
    "swapped_prompts-all": {Verdict.WRONG},
    "raises-all": {Verdict.ERROR},
    "nothing-all": {Verdict.UNKNOWN},
    "no_effect-all": {Verdict.VACUOUS},
    "writes-correct": {Verdict.MATCH, Verdict.EXACT},
    "writes-dropped": {Verdict.DROPPED},
    "writes-half": {Verdict.MISSCALED},
    "writes-twice": {Verdict.MISSCALED},
    "writes-first_prompt_only": {Verdict.PARTIAL},
}
BACKENDS = ("hf", "vllm-pp1", "vllm-pp2")


Cells = dict[tuple[str, str], CellResult]


@pytest.fixture(scope="module")
def cells(broken: Ran) -> Cells:
    """By scenario and case, and backend."""
    found = {(f"{c.scenario}-{c.case}", c.backend): c for c in broken.results.cells}
    return {key: cell for key, cell in found.items() if key[0] in EXPECTED}


def test_each_is_given_its_verdict(cells: Cells) -> None:
    assert set(cells) == {(name, backend) for name in EXPECTED for backend in BACKENDS}
    wrong = {
        f"{cell.id}: {cell.verdict}": cell.reason
        for (name, _), cell in cells.items()
        if cell.verdict not in EXPECTED[name]
    }
    assert wrong == {}


#: What only a trace can do: raise itself, observe nothing, or write nothing.
ITS_OWN = {Verdict.ERROR, Verdict.UNKNOWN, Verdict.VACUOUS}


def test_the_fault_is_the_scenarios_or_it_is_said_that_it_may_be(cells: Cells) -> None:
    for cell in cells.values():
        if cell.verdict.passes:
            assert cell.attribution is None, cell.id
            continue
        assert cell.attribution is not None, cell.id
        side = Side.HARNESS if cell.verdict in ITS_OWN else Side.UNDECIDED
        assert cell.attribution.side is side, f"{cell.id}: {cell.attribution}"
        if side is Side.UNDECIDED:
            assert "the scenario or its reference" in cell.attribution.evidence


def test_a_dropped_write_says_where_on_what_and_how_surely(cells: Cells) -> None:
    for backend in BACKENDS:
        said = f"the write at layer 2 had no effect on {backend} (gain 0.00 ± "
        assert cells["writes-dropped", backend].diagnosis.startswith(said)


def test_the_run_fails(broken: Ran) -> None:
    assert broken.code == 1, broken.output[-2000:]
