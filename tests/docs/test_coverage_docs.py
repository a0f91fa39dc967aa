"""docs/coverage.md holds: what it names exists, what exists is named, no row is empty."""

from __future__ import annotations

import re
from pathlib import Path

from conformance.inputs import manifest
from tests import ours

ROOT = Path(__file__).parents[2]
SCENARIOS = ours.scenarios()
BACKENDS = {backend.id for backend in manifest.load(ROOT / "models.yaml").backends}
TEXT = (ROOT / "docs" / "coverage.md").read_text(encoding="utf-8")
ROWS = [
    tuple(part.strip() for part in line.strip("|").split("|"))
    for line in TEXT.splitlines()
    if line.startswith("| ") and not line.startswith(("| ---", "| behaviour"))
]
NAMES = {name for _, where in ROWS for name in re.findall(r"`([\w.-]+)`", where)} - BACKENDS


def test_every_behaviour_has_a_scenario_or_a_reason() -> None:
    covered = re.compile(r"not covered: \S.{15,}|.*`\w.*")
    assert [behaviour for behaviour, where in ROWS if not covered.fullmatch(where)] == []


def test_every_name_is_a_scenario_or_a_case_of_one() -> None:
    cases = {f"{name}.{case}" for name, one in SCENARIOS.items() for case in one.cases}
    assert sorted(NAMES - cases - set(SCENARIOS)) == []


def test_every_scenario_covers_something() -> None:
    covered = re.sub(r"not covered: .*", "", TEXT)
    named = {name.partition(".")[0] for name in re.findall(r"`([\w.-]+)`", covered)}
    assert sorted(set(SCENARIOS) - named) == []


def test_a_name_that_does_not_exist_would_be_found() -> None:
    assert "clean" in NAMES and "errors.before" in NAMES and len(ROWS) > 50
