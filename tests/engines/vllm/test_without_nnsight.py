"""An engine that does not start is asked without nnsight before nnsight is blamed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from conformance.engines.vllm import engine, without_nnsight
from conformance.judge.cell import attribution, raised
from conformance.spec.records import Backend, Column, Frame, Job, Model, Owner, Side, Verdict
from tests.known_runs import cell

WORDS = "1 validation error\n  Value error, sliding window with max_window_layers is no good"


def own_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str) -> Exception | None:
    """What is made of an error where vLLM by itself does this."""
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "__init__.py").write_text(f"def LLM(*args, **kwargs):\n    {body}\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return without_nnsight.own_error(ValueError(WORDS), "somewhere", {"dtype": "float32"})


def blamed(reason: str) -> Side:
    frames = (
        Frame(Owner.NNSIGHT, "nnsight/modeling/vllm/vllm.py", 10),
        Frame(Owner.ENGINE, "vllm/config/model.py", 20),
    )
    found = attribution.attribute(cell(verdict=Verdict.ERROR, reason=reason, frames=frames), ())
    assert found is not None
    return found.side


def test_the_same_error_is_the_engines_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = own_error(tmp_path, monkeypatch, f"raise ValueError({WORDS!r})")
    assert found is not None and "ValueError" in str(found)
    assert blamed(WORDS) is not Side.ENGINE
    assert blamed(str(found)) is Side.ENGINE
    assert raised._WITHOUT_NNSIGHT == without_nnsight.TOO


@pytest.mark.parametrize("body", ["raise ValueError('another')", "return None"])
def test_another_error_or_none_says_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    assert own_error(tmp_path, monkeypatch, body) is None


def test_one_that_does_not_end_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def hang(*_: object, **__: object) -> None:
        raise subprocess.TimeoutExpired(sys.executable, 1)

    monkeypatch.setattr(subprocess, "run", hang)
    assert without_nnsight.own_error(ValueError(WORDS), "somewhere", {}) is None
    assert without_nnsight.own_error(ValueError(), "somewhere", {}) is None


def test_of_several_stages_the_engine_is_asked_on_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plain vLLM has no stage relay, and refuses a configuration on one rank as on two."""

    def refuse(*_: object, **__: object) -> None:
        raise ValueError(WORDS)

    asked: list[dict[str, object]] = []
    monkeypatch.setattr(engine.patches, "apply", lambda *_, **__: None)
    monkeypatch.setattr(engine.requests, "model_class", lambda _: (refuse, {}))
    monkeypatch.setattr(engine, "room_for", lambda _: {})
    monkeypatch.setattr(without_nnsight, "own_error", lambda error, path, how: asked.append(how))
    column = Column(Backend("two", "vllm", pipeline=2))
    job = Job("x:y", Model("m", "qwen2", ()), column, Path(), Path(), Path(), ())
    with pytest.raises(ValueError, match="max_window_layers"):
        engine.load(job, "sync")
    assert [how["pipeline_parallel_size"] for how in asked] == [1]
