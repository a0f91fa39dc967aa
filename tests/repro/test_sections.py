"""The parts of a script beside each other."""

from __future__ import annotations

import ast

import pytest

from conformance.repro.quoting import definitions
from conformance.repro.scenario_source import asked
from conformance.repro.sections import sections
from tests import ours

SCENARIOS = ours.scenarios()


@pytest.mark.parametrize("engine", ["hf", "vllm"])
@pytest.mark.parametrize("name", ["save_alias", "accessors", "steering"])
def test_the_judge_takes_no_name_from_what_it_judges(name: str, engine: str) -> None:
    """It is defined last, in the halves' processes too, where a trace would find its `rows`."""
    parts = sections(asked(SCENARIOS[name]), engine, (), rules=(), exact=False, used="")
    trace, truth, judge = (
        definitions(ast.parse(one.text)).keys() for one in (parts.trace, parts.truth, parts.judge)
    )
    assert judge
    assert not judge & (trace | truth)
