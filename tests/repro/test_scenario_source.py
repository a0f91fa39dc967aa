"""A scenario's file as two plain functions, with the files beside it."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from conformance.errors import ConformanceError
from conformance.repro.scenario_source import asked
from conformance.scenario import Scenario, discover
from tests import ours

ROOT = Path(__file__).parents[2]

BESIDE = '''"""What is shared."""
import math

LIMIT = math.pi


def read(model, case):
    return [LIMIT]
'''
FILE = '''"""Odd: says nothing."""
from __future__ import annotations

from dataclasses import replace as changed

from conformance import PAIR, scenario
from tests import ours
from ._beside import read as honest, LIMIT

# Above the helper.
def helper(case):
    return changed(case), PAIR, LIMIT


@scenario(options={"of": ("one", "two")})
def odd(lm, case):
    """Its own words."""
    return helper(case)


odd.reference(honest)
'''


@pytest.fixture
def made(tmp_path: Path) -> Iterator[dict[str, Scenario]]:
    folder = tmp_path / "odd_scenarios"
    folder.mkdir()
    (folder / "__init__.py").write_text('"""Made for a test."""\n')
    (folder / "_beside.py").write_text(BESIDE)
    (folder / "odd.py").write_text(FILE)
    yield discover(folder)
    sys.path.remove(str(tmp_path))
    for name in [name for name in sys.modules if name.startswith("odd_scenarios")]:
        del sys.modules[name]


def test_both_functions_run_without_the_decorator(made: dict[str, Scenario]) -> None:
    from dataclasses import dataclass, replace

    found = asked(made["odd"])
    assert (found.trace, found.reference) == ("odd", "odd_reference")
    assert "scenario" not in found.text
    names: dict[str, object] = {"math": __import__("math"), "changed": replace}
    exec(found.text, names)

    @dataclass
    class Case:
        name: str

    assert names["odd_reference"](None, None) == [names["LIMIT"]]
    assert names["odd"](None, Case("x"))[0] == Case("x")
    assert "# Above the helper." in found.text
    assert {"changed", "math"} <= set(found.imports)


def test_every_scenario_of_the_project_can_be_written_out() -> None:
    broken = discover(ROOT / "tests" / "end_to_end" / "broken_scenarios")
    for one in (ours.scenarios() | broken).values():
        found = asked(one)
        compile(found.text, one.name, "exec")
        assert {found.trace, found.reference} <= found.names


def test_more_of_the_harness_than_the_decorator_is_refused(made: dict[str, Scenario]) -> None:
    path = made["odd"].path
    path.write_text(
        FILE.replace(
            "from dataclasses import replace as changed", "from conformance import plan as changed"
        )
    )
    with pytest.raises(ConformanceError, match="cannot hold") as caught:
        asked(made["odd"])
    assert caught.value.line == 4
