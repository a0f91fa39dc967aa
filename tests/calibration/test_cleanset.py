"""The clean set: enough cases, each of its own, and none of an engine that is tested."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from conformance import manifest
from conformance.calibration import CASES_PER_ALARM, cleanset, planned_cells, variants
from conformance.calibration.cleanset import PROMPTS, clean_cases
from conformance.jobs import REFERENCE
from conformance.store import RunFolder
from tests import ours

ROOT = Path(__file__).parents[2]
MODELS = manifest.load(ROOT / "models.yaml").models
SCENARIOS = ours.scenarios()


def test_the_first_variant_is_the_matrixs_own() -> None:
    first = variants(MODELS, SCENARIOS)[0]
    assert first.model.sources == MODELS[0].sources
    assert {n: s.prompts for n, s in first.scenarios.items()} == {
        n: s.prompts for n, s in SCENARIOS.items()
    }


def test_every_other_has_prompts_of_its_own_and_weights_where_they_are_drawn() -> None:
    for model in MODELS:
        own = [one for one in variants(MODELS, SCENARIOS) if one.of == model.id]
        assert len(own) == len(PROMPTS) == len({one.model.id for one in own})
        assert len({next(iter(one.scenarios.values())).prompts for one in own}) == len(PROMPTS)
        seeds = {one.model.sources[0].seed for one in own}
        tiny = model.sources[0].kind == "tiny"
        assert len(seeds) == (len(PROMPTS) if tiny else 1)


def test_prompts_differ_in_content_and_length() -> None:
    every = [prompt for pair in PROMPTS for prompt in pair]
    assert len(set(every)) == len(every)
    assert all(len(left.split()) < len(right.split()) for left, right in PROMPTS[1:])


def test_there_are_enough_cases_and_only_of_the_reference() -> None:
    cells = planned_cells(variants(MODELS, SCENARIOS))
    assert {cell.backend for cell in cells} == {REFERENCE.id}
    assert len(set(cells)) == len(cells) >= CASES_PER_ALARM
    # One alarm in so many can only be told from as many runs: five are held out of each case.
    per_model = len(cells) // len(MODELS)
    assert 5 * per_model >= CASES_PER_ALARM - 1


def test_what_is_scored_is_what_was_gathered(tmp_path, monkeypatch) -> None:
    """A scenario for one family, or for experts only, is no missing case of the others."""
    monkeypatch.setattr(cleanset, "locate", lambda *_: SimpleNamespace(layers=4))
    chosen = variants(MODELS[:3], SCENARIOS)
    scored = [
        (f"{clean.model}@{clean.name.rpartition('@')[2]}", clean.case.scenario, clean.case.name)
        for clean in clean_cases(RunFolder(tmp_path), chosen, tmp_path)
    ]
    planned = [(cell.model, cell.scenario, cell.case) for cell in planned_cells(chosen)]
    assert sorted(scored) == sorted(planned)
