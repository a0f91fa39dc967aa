"""A run folder of somebody else's has nothing executed that the user has not named."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.errors import ConformanceError
from conformance.inputs import manifest as manifests
from conformance.planning import trust
from conformance.records import Backend, Cell, Column, Model, Thresholds
from conformance.store import RunPlan

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
    return RunPlan(
        "r",
        "now",
        "conformance run",
        (Model("m", "llama", ()),),
        columns or (Column(Backend("hf", "hf")),),
        (Cell("m", "hf", "s", "c"),),
        Thresholds(),
        scenarios=str(here / scenarios),
    )


def check(here: Path, found: RunPlan) -> None:
    trust.check(
        found,
        here / "run",
        scenarios=here / "scenarios",
        manifest=here / "models.yaml",
        cache=here / "cache",
    )


def test_a_script_starts_nothing_that_a_run_has_besides(here: Path) -> None:
    """The same list as for a plan, of the column and its one-stage twin, and the weights."""
    hf, foreign = Column(Backend("hf", "hf")), Column(Backend("hf", "hf"), python="/tmp/python")
    where = {"path": here / "run", "manifest": here / "models.yaml", "cache": here / "cache"}
    known = manifests.load(here / "models.yaml").models[0]
    trust.check_script(known, (hf,), **where)
    with pytest.raises(ConformanceError, match="'m': weights of another source") as caught:
        trust.check_script(replace(known, sources=()), (hf,), **where)
    assert "--models" in caught.value.remedy and "--trust" in caught.value.remedy
    with pytest.raises(ConformanceError, match="the interpreter '/tmp/python'"):
        trust.check_script(known, (hf, foreign), **where)


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
        (
            Column(Backend("hf", "hf"), python="cache/environments/../../python"),
            "interpreter 'cache",
        ),
    ],
)
def test_what_is_not_is_listed(
    here: Path, column: Column, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    with pytest.raises(ConformanceError) as caught:
        check(here, plan(here, column))
    assert words in str(caught.value)
    assert "--trust" in caught.value.remedy


def test_resuming_imports_no_scenarios_that_only_the_plan_names(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from conformance.store import RunFolder

    planted = here / "theirs"
    planted.mkdir()
    (planted / "s.py").write_text(f"open({str(here / 'executed')!r}, 'w')\n")
    run = RunFolder(here / "reports" / "r")
    run.write_plan(plan(here, scenarios="theirs"))
    monkeypatch.chdir(here)
    ran = CliRunner().invoke(app, ["run", "--resume", "r"])
    assert isinstance(ran.exception, ConformanceError), ran.output
    assert "scenarios imported from" in str(ran.exception)
    assert not (here / "executed").exists()
