"""What a library is told of a scenario means what the scenario's reference means."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from conformance.engines import Refused
from conformance.engines.libraries import adapter
from conformance.engines.libraries.adapter import LibraryEngine, PromptBatch
from conformance.engines.traced import flatten_runs
from conformance.spec.programs import Do, ModelPart, Operation, Program, check
from conformance.spec.scenario import Scenario, discover
from tests.spec.programs.toy import ROOT, WIDTH, Toy, cases, library_job

LAYERS = 5
SEVEN = {"clean", "read_all", "cross_consume", "cross_write", "ablation", "steering", "multigen"}


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> LibraryEngine:
    toy = Toy(LAYERS)
    monkeypatch.setattr(adapter, "vector", lambda _, layer, seed: toy.direction(layer, seed))
    return LibraryEngine(library_job("toy"), toy)


def test_each_of_the_seven_has_a_program_for_every_case():
    named = {(case.scenario, case.name) for _, case in cases(LAYERS)}
    every = discover(ROOT / "scenarios")
    assert {scenario for scenario, _ in named} == SEVEN
    assert named == {(name, case) for name in SEVEN for case in every[name].cases}
    for scenario, case in cases(LAYERS):
        check(scenario.form(LAYERS, case).program)


@pytest.mark.parametrize(
    ("scenario", "case"), [pytest.param(*one, id=one[1].key) for one in cases(LAYERS)]
)
def test_a_library_observes_what_the_reference_of_the_scenario_says(opened, scenario, case):
    toy = opened.library
    reference = flatten_runs(scenario, case, lambda run_case: scenario.specification(toy, run_case))
    seen = opened.run(scenario, case)
    assert set(seen) == set(reference)
    for site, value in reference.items():
        torch.testing.assert_close(seen[site], value, msg=site)


def test_what_a_hook_missed_is_missing_and_not_made_up(opened):
    scenario = discover(ROOT / "scenarios")["read_all"]
    case = next(case for case in scenario.expand(LAYERS) if case.name == "pair")
    opened.library.missing = ("stream", 2)
    seen = opened.run(scenario, case)
    assert "p0/s0/stream.1" in seen
    assert "p0/s0/stream.2" not in seen


def test_a_scenario_without_a_form_is_refused_in_words(opened):
    scenario = discover(ROOT / "scenarios")["raw"]
    with pytest.raises(Refused, match="no program"):
        opened.run(scenario, scenario.expand(LAYERS)[0])


def written(program: Program) -> Scenario:
    clean = discover(ROOT / "scenarios")["clean"]
    return replace(clean, twin=lambda _: program.twin, _program=[lambda *_: program])


def test_a_program_that_is_the_whole_of_a_scenario_is_gathered_by_its_own_names(opened):
    program = Program(("One two",), (Operation(Do.ZERO, layer=1), Operation(Do.READ, layer=1)))
    scenario = written(program)
    seen = opened.run(scenario, scenario.expand(LAYERS)[0])
    assert not seen["edited/p0/s0/stream.1"].any() and seen["clean/p0/s0/stream.1"].any()
    assert "edited/p0/s0/written_0.1" in seen


@pytest.mark.parametrize("do", [Do.STOP, Do.FORCE])
def test_what_no_adapter_does_is_refused(opened, do):
    forced = Operation(Do.FORCE, ModelPart.TOKEN, amount=3)
    stopped = Operation(Do.STOP, layer=2, prompt=0)
    read = Operation(Do.READ, layer=1)
    scenario = written(Program(("One",), (read, forced if do is Do.FORCE else stopped)))
    with pytest.raises(Refused, match=do):
        opened.run(scenario, scenario.expand(LAYERS)[0])


def test_a_prompt_sees_and_changes_its_own_rows_and_no_padding():
    seen = []

    def write(step, rows):
        seen.append((step, len(rows)))
        return rows * 0

    batch = PromptBatch(["One", "One two three"], [{("stream", 0): write}, {}], 2)
    batch.lengths = [1, 3]
    whole = torch.ones(2, 3, WIDTH)
    changed = batch.pass_by(("stream", 0), whole)
    assert changed[0, :2].all() and not changed[0, 2].any() and changed[1].all()
    assert whole.all()  # what the library holds is its own
    batch.pass_by(("stream", 0), torch.ones(2, 1, WIDTH))
    assert seen == [(0, 1), (1, 1)]


def test_what_only_reads_changes_nothing():
    batch = PromptBatch(["One"], [{("stream", 0): lambda _, rows: rows}], 1)
    batch.lengths = [1]
    assert batch.pass_by(("stream", 0), torch.ones(1, 1, WIDTH)) is None


def test_places_come_in_the_order_of_a_forward():
    named = [("norm", None), ("stream", 1), ("input", 1), ("stream", 0), ("embedding", None)]
    batch = PromptBatch(["One"], [dict.fromkeys(named, lambda _, rows: rows)], 1)
    assert batch.places == [
        ("embedding", None), ("stream", 0), ("input", 1), ("stream", 1), ("norm", None),
    ]  # fmt: skip
