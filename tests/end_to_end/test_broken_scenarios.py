"""Traces that do something else than their reference must be found out, on real engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from conformance.records import Side, Verdict
from tests.end_to_end.conftest import Ran, conformance

pytestmark = pytest.mark.engine

BROKEN = Path(__file__).parent / "broken_scenarios"

EXPECTED = {
    "honest_read": {Verdict.MATCH, Verdict.EXACT},
    "honest_write": {Verdict.MATCH, Verdict.EXACT},
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


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return conformance(
        tmp_path_factory.mktemp("reports"),
        *("run", "-m", "llama", "-b", "hf", "-b", "vllm-pp1", "-b", "vllm-pp2"),
        *("--scenarios", str(BROKEN)),
    )


@pytest.mark.parametrize("backend", ["hf", "vllm-pp1", "vllm-pp2"])
@pytest.mark.parametrize("name", EXPECTED)
def test_each_is_given_its_verdict(broken: Ran, name: str, backend: str) -> None:
    [cell] = [c for c in broken.results.cells if (c.scenario, c.backend) == (name, backend)]
    assert cell.verdict in EXPECTED[name], cell.reason


#: What only a trace can do: raise itself, observe nothing, or write nothing.
ITS_OWN = {Verdict.ERROR, Verdict.UNKNOWN, Verdict.VACUOUS}


def test_the_fault_is_the_scenarios_or_it_is_said_that_it_may_be(broken: Ran) -> None:
    for cell in broken.results.cells:
        if cell.verdict.passes:
            assert cell.attribution is None, cell.id
            continue
        assert cell.attribution is not None, cell.id
        side = Side.HARNESS if cell.verdict in ITS_OWN else Side.UNDECIDED
        assert cell.attribution.side is side, f"{cell.id}: {cell.attribution}"
        if side is Side.UNDECIDED:
            assert "the scenario or its reference" in cell.attribution.evidence


def test_a_dropped_write_says_where_on_what_and_how_surely(broken: Ran) -> None:
    for backend in ("hf", "vllm-pp1", "vllm-pp2"):
        [cell] = [
            c for c in broken.results.cells if (c.scenario, c.backend) == ("dropped_write", backend)
        ]
        said = f"the write at layer 2 had no effect on {backend} (gain 0.00 ± "
        assert cell.diagnosis.startswith(said)


def test_every_broken_scenario_is_expected_and_the_run_fails(broken: Ran) -> None:
    assert {cell.scenario for cell in broken.results.cells} == set(EXPECTED)
    assert broken.code == 1, broken.output[-2000:]
