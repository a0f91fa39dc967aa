"""What a self-test runs: faults where a model has what they need, and gaps that are no alarms."""

from __future__ import annotations

from conformance.expectations import Match
from conformance.records import PARTS, Backend, Cell, Model, Source
from conformance.selftest import run
from conformance.selftest.faults import FAULTS

TINY = (Source("tiny"),)
DENSE = Model("llama", "llama", TINY)
MIXTURE = Model("mixtral", "mixtral", TINY, parts=(*PARTS, "experts"))
BACKENDS = (Backend("hf", "hf"), Backend("vllm-pp1", "vllm"))


def planned(*names: str, gaps: tuple[Match, ...] = ()) -> run.Plan:
    return run.plan([FAULTS[name] for name in names], (DENSE, MIXTURE), BACKENDS, gaps=gaps)


def test_a_fault_of_experts_and_its_honest_cells_are_those_of_models_that_have_some() -> None:
    plan = planned("router-tie", "error-swallowed")
    injected = {(one.cells[0].model, one.variant.fault.id) for one in plan.faulty}
    assert ("mixtral", "router-tie") in injected
    assert ("llama", "router-tie") not in injected
    assert ("llama", "error-swallowed") in injected
    assert Cell("mixtral", "hf", "router", "all") in plan.honest
    assert not [cell for cell in plan.honest if (cell.model, cell.scenario) == ("llama", "router")]


def test_what_is_known_not_to_pass_is_run_but_is_no_alarm() -> None:
    gap = Match(model="llama", backend="vllm*", scenario="errors", case="order")
    plan = planned("error-swallowed", gaps=(gap,))
    left = set(plan.honest) - set(plan.sound)
    assert left == {Cell("llama", "vllm-pp1", "errors", "order")}
    assert planned("error-swallowed").sound == planned("error-swallowed").honest
