"""Seeded kills and refusals: the whole of it is bench/campaign.py."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from bench import campaign


def test_the_same_seed_draws_the_same_trials_however_many() -> None:
    trials = campaign.drawn(40, 1, ["hf", "vllm-pp2"])
    assert campaign.drawn(20, 1, ["hf", "vllm-pp2"]) == trials[:20]
    assert campaign.drawn(40, 2, ["hf", "vllm-pp2"]) != trials
    assert {trial.phase for trial in trials if trial.kind == "kill"} == set(campaign.PHASES)
    assert not [trial for trial in trials if (trial.backend, trial.who) == ("hf", "engine")]


def test_the_table_counts_by_kind() -> None:
    tried = {
        "0: kill parent load SIGKILL hf": "",
        "1: kill parent cell SIGTERM hf": "missed",
        "2: no HOME hf": "other figures",
    }
    text, lost = campaign.table(tried)
    rows = {line[:30].strip(): line[30:].split() for line in text.splitlines()[1:]}
    assert rows["kill parent"] == ["2", "1", "1", "0"]
    assert rows["no HOME"] == ["1", "0", "0", "1"]
    assert rows["in all"] == ["3", "1", "1", "1"]
    assert lost == 1


def test_a_process_that_is_left_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "GONE", 0.2)
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(campaign, "SHARED", tmp_path / "shm")  # others' comes and goes
    place = campaign.Place(tmp_path, f"of-a-test-{os.getpid()}")
    (tmp_path / "tmp" / "cfm-run-x").mkdir(parents=True)
    assert "cfm-run-x" in campaign._left(place, set(campaign.SHARED.iterdir()))
    (tmp_path / "tmp" / "cfm-run-x").rmdir()
    process = place.start(["sleep", "30"])
    while not place.processes():  # a process that has just begun shows no variables yet
        assert process.poll() is None
    assert "sleep" in campaign._left(place, set(campaign.SHARED.iterdir()))
    process.kill()
    process.wait()
    (tmp_path / "shm" / "psm_1").touch()
    assert "psm_1" in campaign._left(place, set())
    assert campaign._left(place, set(campaign.SHARED.iterdir())) == ""


@pytest.mark.engine
@pytest.mark.slow
def test_nothing_is_lost(tmp_path: Path) -> None:
    trials = (
        campaign.Trial(0, "kill", "hf", "parent", "load", "SIGKILL"),
        campaign.Trial(1, "kill", "hf", "worker", "cell", "SIGKILL"),
        campaign.Trial(2, "umask 077", "hf"),
    )
    tried = campaign.run(trials, tmp_path)
    assert len(tried) == 3
    assert not [lost for lost in tried.values() if lost not in {"", "missed"}], tried
