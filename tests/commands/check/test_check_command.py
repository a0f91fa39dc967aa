"""`conformance check` while the answers are worked out: what is said, and who stops it."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.check import gather
from conformance.commands.check.values import compare
from conformance.errors import ConformanceError, ExitCode
from conformance.runner.planning import named
from conformance.runner.scheduling import RunSummary
from conformance.runner.store import RunFolder
from conformance.spec.records import Model, Source
from tests.commands.check.test_stored_check import FILE, gathered


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A check of two files, the second of which differs; no engine is started."""
    (tmp_path / "helper.py").write_text("LAYER = 1\n")
    for name in ("first.py", "second.py"):
        (tmp_path / name).write_text(FILE)
    model = Model("llama", "llama", (Source("path", file="/data/llama"),))

    def gathering(request: gather.CheckRequest, run: RunFolder, *_: object) -> RunSummary:
        gathered(run, "first", factor=1.0)
        return gathered(run, "second", factor=2.0)

    monkeypatch.setattr(named, "find_model", lambda *_: model)
    monkeypatch.setattr(gather, "gather", gathering)
    files = [str(tmp_path / name) for name in ("first.py", "second.py")]
    return ["check", *files, "-m", "llama", "--reports", str(tmp_path / "checks")]


def test_every_answer_is_shown_before_the_next_is_worked_out(arguments):
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == ExitCode.UNEXPECTED
    order = (
        "comparing first on vllm-pp1",
        "first.py on llama, vllm-pp1: the same",
        "comparing second on vllm-pp1",
        "second.py on llama, vllm-pp1: not the same",
    )
    places = [ended.output.index(words) for words in order]
    assert places == sorted(places)


def test_json_stays_one_document_at_the_end(arguments):
    ended = CliRunner().invoke(app, [*arguments, "--json"])
    assert [one["answer"] for one in json.loads(ended.stdout)] == ["same", "differs"]
    assert "comparing second on vllm-pp1" in ended.stderr


def test_who_interrupts_the_answers_is_told_how_to_go_on(arguments, tmp_path, monkeypatch):
    ours, files = compare.compare, []

    def interrupted(*arguments: object) -> compare.Compared:
        files.append(arguments)
        if len(files) == 3:  # the first file's two precisions are judged by then
            raise KeyboardInterrupt
        return ours(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(compare, "compare", interrupted)
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == ExitCode.INTERRUPTED
    [folder] = [one for one in (tmp_path / "checks").iterdir() if not one.is_symlink()]
    again = ["judge", folder.name, "--reports", str(tmp_path / "checks")]
    assert "first.py on llama, vllm-pp1: the same" in ended.output
    assert f"interrupted; go on with: conformance {' '.join(again)}" in ended.output
    with pytest.raises(ConformanceError, match=f"conformance judge {folder.name}"):
        RunFolder(folder).results()
    monkeypatch.setattr(compare, "compare", ours)
    assert CliRunner().invoke(app, again).exit_code == ExitCode.UNEXPECTED
    results = RunFolder(folder).results()
    assert [cell.case for cell in results.cells] == ["first", "second"]
    assert results.run.seconds == 1.0


def test_a_check_whose_gathering_was_interrupted_is_made_again(arguments, tmp_path, monkeypatch):
    monkeypatch.setattr(gather, "gather", lambda *_: RunSummary({}, 1.0, 1.0, True, 0, 0))
    ended = CliRunner().invoke(app, arguments)
    assert ended.exit_code == ExitCode.INTERRUPTED and "interrupted" in ended.output
    with pytest.raises(ConformanceError, match="check it again: conformance"):
        RunFolder(tmp_path / "checks" / "latest").results()


def test_a_check_is_made_again_with_the_options_that_it_was_given(arguments, tmp_path):
    CliRunner().invoke(app, [*arguments, "--timeout", "90", "--prompt", "Hello"])
    cells = RunFolder(tmp_path / "checks" / "latest").results().cells
    told = [shlex.split(cell.command) for cell in cells]
    assert [one[2] for one in told] == [str(tmp_path / f"{n}.py") for n in ("first", "second")]
    options = ["--prompt", "Hello", "--timeout", "90.0", "--reports", str(tmp_path / "checks")]
    assert all(one[-6:] == options for one in told)
    CliRunner().invoke(app, arguments[:-2], env={"CONFORMANCE_CACHE": str(tmp_path / "cache")})
    cells = RunFolder(tmp_path / "cache" / "checks" / "latest").results().cells
    assert [cell.command.endswith(" -m llama") for cell in cells] == [True, True]
