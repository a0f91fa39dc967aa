"""`conformance calibrate`: what it writes, and what an interruption leaves."""

from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance import calibration, cli
from conformance.calibration import measuring
from conformance.errors import ExitCode
from tests.calibration.test_quantiles import calibrated, scores


def calibrate(path: Path) -> tuple[int, str]:
    done = CliRunner().invoke(
        cli.app, ["calibrate", "--write", str(path), "--reports", str(path.parent)]
    )
    return done.exit_code, done.output


def test_what_was_measured_is_written_and_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = calibrated([*scores(300), *scores(1, 1.9, 4.0, "loud")])
    monkeypatch.setattr(measuring, "measure", lambda *_, **__: found)
    path = tmp_path / "calibration.json"
    code, said = calibrate(path)
    assert code == ExitCode.OK
    assert calibration.read(path) == found
    assert "loud needs more than the caps" in said
    assert "301 clean cases" in said


@pytest.mark.parametrize("while_gathering", [True, False])
def test_an_interruption_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, while_gathering: bool
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        if not while_gathering:
            raise KeyboardInterrupt

    monkeypatch.setattr(measuring, "measure", interrupted)
    path = tmp_path / "calibration.json"
    path.write_text("as it was")
    code, said = calibrate(path)
    assert code == ExitCode.INTERRUPTED
    assert path.read_text() == "as it was"
    assert "The same command goes on" in said
    assert [one.name for one in tmp_path.iterdir()] == ["calibration.json"]
