"""The seven scenarios that this project began with, as the programs that they say they are."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conformance.programs import Program
from conformance.records import Case
from conformance.scenario import Scenario, discover

ROOT = Path(__file__).parents[2]


def cases(layers: int) -> list[tuple[Scenario, Case]]:
    """Every case that has such a form, for a model of so many layers."""
    every = discover(ROOT / "scenarios").values()
    return [
        (scenario, case)
        for scenario in every
        for case in scenario.expand(layers)
        if scenario.form(layers, case) is not None
    ]


def charter(layers: int) -> Mapping[str, Program]:
    """The programs by scenario and case."""
    return {
        f"{case.scenario}-{case.name}": scenario.form(layers, case).program
        for scenario, case in cases(layers)
    }
