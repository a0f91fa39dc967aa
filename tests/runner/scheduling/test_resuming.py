"""`latest` is the newest run from its start, and a run that was interrupted says so."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.shared import execution
from conformance.errors import ConformanceError
from conformance.runner.store import RunFolder, open_run
from conformance.spec.records import Thresholds
from tests.faulty_command import Workplace, workplace
from tests.patience import PATIENCE, wait_until

CASES = ("first", "bad", "last")


def interrupted(place: Workplace) -> str:
    """Begin a run, interrupt it in its last cell; returns its name."""
    process = place.start(place.of_a_run("run", "--precision", "bf16"))
    wait_until_in_last(place, process)
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=PATIENCE)
    assert process.returncode == 130, output
    [name] = set(runs(place)) & {word.strip() for word in output.split()}
    return name


def wait_until_in_last(place: Workplace, process: subprocess.Popen[str]) -> None:
    """Until the column that waits has begun its last case."""
    noted = place.folder / "noted-WaitsInLast"

    def begun() -> int:
        return noted.read_text().count("plain.last") if noted.exists() else 0

    before = begun()
    wait_until(lambda: begun() > before or process.poll() is not None)
    assert process.poll() is None, process.communicate()[0]


def runs(place: Workplace) -> list[str]:
    return sorted(
        path.name
        for path in place.reports.iterdir()
        if path.is_dir() and not path.is_symlink() and (path / "plan.json").is_file()
    )


@pytest.fixture
def place(tmp_path: Path) -> Workplace:
    return workplace(tmp_path, "WaitsInLast")


#: Its engine refuses what it is asked, and no known.yaml expects that.
UNEXPECTED = 1


def test_latest_is_the_interrupted_run_and_not_the_finished_one_before(place: Workplace) -> None:
    finished = begin(place.reports)
    finished.finish()
    name = interrupted(place)
    assert open_run(place.reports).id == name != finished.id

    for verb in (["show", "plain"], ["report", "latest"], ["judge", "latest"], ["gate", "latest"]):
        of_a_run = place.manifest if verb[0] == "gate" else []
        ended = CliRunner().invoke(app, [*verb, *of_a_run, "--reports", str(place.reports)])
        assert isinstance(ended.exception, ConformanceError), (verb, ended.output)
        assert ended.exception.code == 2
        assert "unfinished" in str(ended.exception), verb
        assert f"conformance run --resume {name}" in str(ended.exception), verb

    (place.folder / "gate").touch()
    code, output = place.ran(place.of_a_run("run", "--resume", "latest"))
    assert code == UNEXPECTED, output
    assert name in output
    folder = open_run(place.reports)
    assert folder.id == name
    assert {cell.case for cell in folder.results().cells} == set(CASES)
    noted = (place.folder / "noted-WaitsInLast").read_text().split()
    assert noted.count("plain.first") == 1, "not again when resumed"
    assert noted.count("plain.last") == 2
    assert not [one for one in psutil.process_iter() if str(place.folder) in _command(one)]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.slow
def test_a_finished_run_that_is_being_changed_is_unfinished_again(place: Workplace) -> None:
    (place.folder / "gate").touch()
    assert place.ran(place.of_a_run("run", "--precision", "bf16"))[0] == UNEXPECTED
    folder = open_run(place.reports)
    folder.group_folder("m", "WaitsInLast").drop_cell("plain.last")
    (place.folder / "gate").unlink()
    process = place.start(place.of_a_run("run", "--resume", "latest"))
    wait_until_in_last(place, process)
    process.kill()
    process.communicate()
    code, output = place.ran(place.command("show", "plain.last", "--reports", str(place.reports)))
    assert code == 2, output
    assert "unfinished: 2 of 3" in output


def begin(reports: Path) -> RunFolder:
    """Begin a run of nothing, in this process."""
    how = {"scenarios": reports, "thresholds": Thresholds(), "jobs": 1}
    return execution.begin(reports, (), (), (), **how)


def test_a_run_is_the_latest_from_its_start_and_stays_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer = begin(tmp_path), begin(tmp_path)
    assert open_run(tmp_path).id == newer.id
    older.finish()
    results = execution.judge(older, {}, Thresholds())
    monkeypatch.setattr(execution.html, "publish", lambda *_: tmp_path)
    execution.publish(older, results)
    assert open_run(tmp_path).id == newer.id
