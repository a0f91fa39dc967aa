"""What the scenarios claim to catch is injected: neither side of the table stands alone."""

from __future__ import annotations

from conformance.selftest.faults import FAULTS
from tests import ours

SCENARIOS = ours.scenarios()
CAUGHT = {case.split(".", 1)[0] for one in FAULTS.values() if not one.silent for case in one.cases}


def test_no_scenario_is_without_a_fault_that_it_must_catch():
    assert sorted(set(SCENARIOS) - CAUGHT) == []


def test_no_fault_is_without_a_scenario():
    assert [name for name, fault in FAULTS.items() if not fault.cases] == []
    assert sorted(CAUGHT - set(SCENARIOS)) == []


def test_a_case_with_settings_of_its_own_meets_faults_in_a_load_of_its_own():
    """A worker that runs many faults has one engine, with the settings of the others."""
    asking = {
        f"{name}.{case.name}"
        for name, scenario in SCENARIOS.items()
        for case in scenario.expand(4)
        if case.settings
    }
    for fault in FAULTS.values():
        if asking & set(fault.cases) and fault.backends != ("hf",):
            assert fault.alone and set(fault.cases) <= asking, fault.id
