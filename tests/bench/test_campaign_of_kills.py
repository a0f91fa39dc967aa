"""Seeded kills and refusals: the whole of it is bench/campaign.py."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from bench import campaign, disturbances, trials


def test_the_same_seed_draws_the_same_trials_however_many() -> None:
    every = trials.drawn(400, 1, ["hf", "vllm-pp2"])
    assert trials.drawn(20, 1, ["hf", "vllm-pp2"]) == every[:20]
    assert trials.drawn(400, 2, ["hf", "vllm-pp2"]) != every
    kills = [trial for trial in every if trial.who]
    assert {trial.phase for trial in kills} == set(trials.PHASES)
    assert {trial.signal for trial in kills} == set(trials.SIGNALS)
    assert {trial.kind for trial in every if not trial.who} == set(trials.REFUSED)
    stages = {(trial.backend, trial.of) for trial in kills if trial.who == "stage"}
    assert stages == {("vllm-pp2", "column")}, "neither transformers nor the reference has any"
    phases = {trial.phase for trial in kills if trial.who == "stage"}
    assert phases == {"load", "probe", "cell", "collect"}


def test_a_cache_that_is_full_holds_what_it_held_and_has_little_left(tmp_path: Path) -> None:
    if subprocess.run(["unshare", "--mount", "true"], check=False, capture_output=True).returncode:
        pytest.skip("no disk of its own may be mounted here")
    place = trials.Place(tmp_path, "of-a-test")
    kept = tmp_path / "cache" / "checkpoints" / "model.safetensors"
    kept.parent.mkdir(parents=True)
    kept.write_bytes(bytes(100_000))
    trial = trials.Trial(0, "a full cache", "hf", 0.5)
    command, more = disturbances._refusing(trial, place)
    assert not more
    begin = command[: command.index("sh", 4) + 1]
    shell = f"cat {kept} | wc -c; head -c 300000 /dev/zero > {tmp_path}/cache/new"
    ran = subprocess.run([*begin, "sh", "-c", shell], check=False, capture_output=True, text=True)
    assert ran.stdout.strip() == "100000"
    assert "No space left" in ran.stderr
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["checkpoints"]


def test_the_table_counts_by_kind() -> None:
    every = [
        trials.Trial(0, "kill", "hf", 0.0, "parent", "column", "load", "SIGKILL"),
        trials.Trial(1, "kill", "hf", 0.0, "parent", "", "plan", "SIGTERM"),
        trials.Trial(2, "no HOME", "hf"),
        trials.Trial(3, "umask 077", "hf"),
    ]
    ends = ("", "missed", "other figures")
    tried = {f"{one.number}: {one.words}": end for one, end in zip(every, ends, strict=False)}
    text, lost = campaign.table(every, tried)
    rows = {line[:30].strip(): line[30:].split() for line in text.splitlines()[1:]}
    assert list(rows) == [
        *("kill parent", "in column load", "in plan", "SIGKILL", "SIGTERM", "no HOME"),
        *("on hf", "in all"),
    ]
    assert rows["kill parent"] == ["2", "1", "1", "0"]
    assert rows["no HOME"] == ["1", "0", "0", "1"]
    assert rows["in all"] == ["3", "1", "1", "1"]
    assert lost == 1


@pytest.mark.parametrize(
    ("event", "group", "phase", "of"),
    [
        ({"event": "loading"}, "reference", "load", "reference"),
        ({"event": "loading"}, "hf+float32", "load", "column"),
        ({"event": "started", "case": "probe.all"}, "reference", "probe", "reference"),
        ({"event": "finished", "case": "probe.all"}, "reference", "cell", "reference"),
        ({"event": "probing"}, "vllm-pp2+float32", "probe", "column"),
        ({"event": "closing"}, "hf+float32", "collect", "column"),
    ],
)
def test_a_phase_is_known_by_what_the_run_writes(
    event: dict[str, str], group: str, phase: str, of: str, tmp_path: Path
) -> None:
    place = trials.Place(tmp_path, "of-a-test")
    run = place.reports / "latest"
    assert disturbances.now(place) == disturbances.Now("plan")
    (run / "groups" / "llama" / group).mkdir(parents=True)
    (run / "unfinished").touch()
    assert disturbances.now(place) == disturbances.Now("import")
    events = run / "groups" / "llama" / group / "events.jsonl"
    events.write_text(json.dumps({**event, "at": 1.0, "pid": 7}) + "\n")
    assert disturbances.now(place) == disturbances.Now(phase, of, 7)
    (run / "unfinished").unlink()
    assert disturbances.now(place) == disturbances.Now("judge")
    (run / "results.json").touch()
    assert disturbances.now(place) == disturbances.Now("page")


def test_a_process_that_is_left_is_a_loss(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(campaign, "GONE", 0.2)
    (tmp_path / "shm").mkdir()
    monkeypatch.setattr(campaign, "SHARED", tmp_path / "shm")  # others' comes and goes
    place = trials.Place(tmp_path, f"of-a-test-{os.getpid()}")
    (tmp_path / "tmp" / "cfm-run-x").mkdir(parents=True)
    assert "cfm-run-x" in campaign._left(place, set(campaign.SHARED.iterdir()))
    (tmp_path / "tmp" / "cfm-run-x").rmdir()
    process = place.start(["sleep", "30"])
    while not place.processes():  # a process that has just begun shows no variables yet
        assert process.poll() is None
    assert "sleep" in campaign._left(place, set(campaign.SHARED.iterdir()))
    process.kill()
    process.wait()
    # An engine's, whose title is written over its variables, and whose log has been removed.
    log = tmp_path / "log.txt"
    with log.open("w") as output:
        process = subprocess.Popen(["sleep", "30"], stdout=output, env={}, start_new_session=True)
    log.unlink()
    process.send_signal(signal.SIGSTOP)
    assert f"{process.pid} sleep" in campaign._left(place, set(campaign.SHARED.iterdir()))
    assert [f"stopped {process.pid} sleep 30"] == campaign._still_there(place)
    process.kill()
    process.wait()
    (tmp_path / "shm" / "psm_1").touch()
    assert "psm_1" in campaign._left(place, set())
    assert campaign._left(place, set(campaign.SHARED.iterdir())) == ""


@pytest.mark.engine
@pytest.mark.slow
def test_nothing_is_lost(tmp_path: Path) -> None:
    every = (
        trials.Trial(0, "kill", "hf", 0.5, "parent", "column", "load", "SIGKILL"),
        trials.Trial(1, "kill", "hf", 0.1, "worker", "reference", "cell", "SIGKILL"),
        trials.Trial(2, "umask 077", "hf"),
    )
    tried = campaign.run(every, tmp_path)
    assert len(tried) == 3
    assert not [lost for lost in tried.values() if lost not in {"", "missed"}], tried


@pytest.mark.engine
@pytest.mark.slow
def test_two_at_once_try_every_trial_between_them(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    if subprocess.run([*campaign.APART, "true"], check=False, capture_output=True).returncode:
        pytest.skip("no processes of their own here")
    folder = tmp_path / "campaign"
    command = ("--trials", "3", "--backend", "hf", "--at-once", "2", "--folder", str(folder))
    assert campaign.main(campaign.arguments().parse_args(command)) == 0
    tried = [path.parent.name for path in folder.glob("*/tried.json")]
    assert sorted(tried) == ["part-1", "part-2"]
    assert capfd.readouterr().out.splitlines()[-1].split()[:3] == ["in", "all", "3"]


def test_a_trial_that_no_part_tried_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(campaign, "at_once", lambda *_: {})
    command = ("--trials", "3", "--at-once", "2", "--folder", str(tmp_path))
    assert campaign.main(campaign.arguments().parse_args(command)) == 1
    assert "3 were not tried" in capsys.readouterr().out
