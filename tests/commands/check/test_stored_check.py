"""A check is kept as a run: the verbs that read a run read it."""

from __future__ import annotations

import itertools
import os
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.check import answer, gather, stored_check
from conformance.commands.repro import script
from conformance.commands.shared import selecting
from conformance.runner.scheduling import RunSummary
from conformance.runner.store import RunFolder, gathered_in, retention
from conformance.spec.inputs import user_file
from conformance.spec.records import (
    Backend,
    Group,
    Model,
    Outcome,
    Precision,
    Source,
    Status,
    Verdict,
)

ROOT = Path(__file__).parents[3]

FILE = """\
from helper import LAYER


def hf(model):
    with model.trace("Hello"):
        hidden = model.model.layers[LAYER].output.save()
    return {"hidden": hidden}


def vllm(model):
    with model.trace("Hello", temperature=0.0, max_tokens=1):
        hidden = model.model.layers[LAYER].output[0].clone().save()
    return {"hidden": hidden}
"""
VLLM = Backend("vllm-pp1", "vllm")
OFF = {Precision.FLOAT32: 1e-6, Precision.BF16: 1e-2}


def request_for(
    file: Path, named: str = "/data/llama", options: tuple[str, ...] = ()
) -> gather.CheckRequest:
    """The request for a check of a file, which is written, with a module that it imports."""
    (file.parent / "helper.py").write_text("LAYER = 1\n")
    file.write_text(FILE)
    model = Model("llama", "llama", (Source("path", file="/data/llama"),))
    return gather.CheckRequest(user_file.read_all([file]), model, (VLLM,), (), named, options)


def checked(tmp_path: Path, *, factor: float) -> tuple[gather.CheckRequest, RunFolder]:
    """A check of one file whose engine gives `factor` times the reference."""
    request = request_for(tmp_path / "my trace.py")
    run = stored_check.begin(request, tmp_path / "checks")
    gathered(run, "my-trace", factor=factor)
    return request, run


def gathered(run: RunFolder, name: str, *, factor: float) -> RunSummary:
    """What the workers leave of a file whose engine gives `factor` times the reference."""
    torch.manual_seed(0)
    reference, ids = torch.randn(4, 8), torch.arange(4)
    seen = {"float32:truth|p0/s0/hidden": reference, "layers|p0/s0/ids": ids}
    for precision, size in OFF.items():
        for way in ("eager", "split", "sdpa", "fused"):
            noisy = reference + size * torch.randn(4, 8)
            seen[f"{precision}:{way}|p0/s0/hidden"] = noisy.to(getattr(torch, precision.dtype))
    key = f"check.{name}"
    run.write_cell("llama", "reference", key, Outcome(Status.OK), seen)
    identity = {"layer_list": "model.layers", "digest": "d", "layers": 2, "width": 8}
    run.group_folder("llama", "reference").write_group(
        Group("llama", "reference", identity=identity)
    )
    for precision, size in OFF.items():
        value = (factor * reference + size / 4 * torch.randn(4, 8)).to(
            getattr(torch, precision.dtype)
        )
        mine = {"p0/s0/hidden": value, "layers|p0/s0/ids": ids}
        folder = gathered_in(VLLM.id, precision)
        run.write_cell("llama", folder, key, Outcome(Status.OK), mine)
        run.group_folder("llama", folder).write_group(Group("llama", VLLM.id, precision))
    run.finish()
    return RunSummary({}, 1.0, 1.0, False, 1, 0)


_SECONDS = itertools.count()


def published_of(folder: Path, name: str, checks: Path | None = None, *options: str) -> RunFolder:
    """A check of one file, newer than those before it, whose engine gives twice the reference."""
    request = request_for(folder / name, "llama", options)
    begun = stored_check.begin(request, checks or folder / "checks").path
    # Of one second names have no order.
    run = RunFolder(begun.rename(begun.with_name(f"20260101-{next(_SECONDS):06}-0000")))
    run.write_plan(replace(run.plan(), run=run.id))
    gathered(run, request.files[0].name, factor=2.0)
    published(request, run)
    return run


def published(request: gather.CheckRequest, run: RunFolder) -> Path:
    return stored_check.publish(run, request, tuple(answer.answers(request, run)))


@pytest.mark.parametrize(
    ("factor", "verdict", "code"), [(1.0, Verdict.MATCH, 0), (2.0, Verdict.MISSCALED, 1)]
)
def test_an_answer_is_a_cell_with_its_evidence(tmp_path, factor, verdict, code):
    request, run = checked(tmp_path, factor=factor)
    page = published(request, run)
    results = run.results()
    [cell] = results.cells
    assert cell.id == "check[llama-vllm-pp1-my-trace]"
    assert (cell.verdict, results.footer.exit_code) == (verdict, code)
    assert cell.observations[0].site == "p0/s0/hidden"
    assert (cell.beside is not None) is (code == 0)  # bf16 is judged where float32 agrees
    assert results.models[0].digest == "d"
    assert "def hf" in results.scenarios[0].reference_source
    assert "def vllm" in results.scenarios[0].trace_source
    assert page.read_text().startswith("<!doctype html>")
    assert not (run.path / "unfinished").exists()


def test_the_verbs_of_a_run_read_a_check(tmp_path):
    request, run = checked(tmp_path, factor=2.0)
    published(request, run)
    before = run.results()
    where = ["--reports", str(run.path.parent)]
    shown = CliRunner().invoke(app, ["show", "my-trace", *where])
    assert shown.exit_code == 0 and "2 times what it is on transformers" in shown.output
    assert CliRunner().invoke(app, ["report", *where]).exit_code == 0
    assert CliRunner().invoke(app, ["judge", *where]).exit_code == 1
    assert run.results().cells == before.cells
    resumed = CliRunner().invoke(app, ["run", "--resume", "latest", *where])
    assert "is no run but a check" in str(resumed.exception)
    assert run.results().cells == before.cells


def test_a_check_holds_its_files_and_what_they_import(tmp_path):
    _, run = checked(tmp_path, factor=1.0)
    (tmp_path / "my trace.py").unlink()
    names = sorted(path.name for path in stored_check.folder_of(run, "my-trace").iterdir())
    assert names == ["helper.py", "my trace.py"]
    again = stored_check.read_request(run)
    assert again.files[0].name == "my-trace" and again.backends == (VLLM,)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Make the folder the cache, and the one in which commands run."""
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def ended(folder, name, kib):
    """A finished check that takes so much."""
    (folder / name).mkdir()
    (folder / name / "plan.json").write_bytes(bytes(kib << 10))
    os.utime(folder / name / "plan.json", (int(name), int(name)))


def left(folder):
    return sorted(path.name for path in folder.iterdir())


def test_the_oldest_checks_go_where_all_take_more_than_their_room(tmp_path):
    for name in ("0", "1", "2", "3", "4"):
        ended(tmp_path, name, kib=64)
    (tmp_path / "0" / "unfinished").touch()  # it runs, or was interrupted
    (tmp_path / "latest").symlink_to("4")
    for room_kib, newest, stay in (
        (512, 1, ["0", "1", "2", "3", "4", "latest"]),
        (160, 1, ["0", "3", "4", "latest"]),
        (0, 2, ["0", "3", "4", "latest"]),
        (0, 1, ["0", "4", "latest"]),
    ):
        limits = replace(retention.CHECKS, room=room_kib << 10, newest=newest)
        retention.sweep(retention.runs(tmp_path), limits)
        assert left(tmp_path) == stay


def test_who_looks_for_a_check_that_is_gone_is_told_how_long_one_is_kept(tmp_path, here):
    told = str(CliRunner().invoke(app, ["show", "x", "--run", "20260101-000000-abcd"]).exception)
    most, stay = (
        f"more than {retention.CHECKS.room >> 30} GiB",
        f"the newest {retention.CHECKS.newest}",
    )
    assert most in told and stay in told and "--reports" in told
    documented = " ".join((ROOT / "docs/check.md").read_text(encoding="utf-8").split())
    assert most in documented and f"never one of {stay}" in documented


def test_the_newest_check_of_this_folder_is_taken_and_said(tmp_path, here, monkeypatch):
    ids = {}
    for name in ("mine", "theirs"):
        (tmp_path / name).mkdir()
        monkeypatch.chdir(tmp_path / name)
        ids[name] = published_of(tmp_path, "my trace.py").id
    (tmp_path / "checks" / "99999999-begun-only").mkdir()
    for folder, where in (
        ("mine", f"this folder with 'my-trace': {ids['mine']}, conformance"),
        ("", f"any folder with 'my-trace'; this one has none: {ids['theirs']}"),
    ):
        monkeypatch.chdir(tmp_path / folder)
        assert f"the newest check of {where}" in shown("my-trace")[0]


def shown(cell, *more):
    """What `show --run check` says, and the error that it ends in."""
    ended = CliRunner().invoke(app, ["show", cell, "--run", "check", *more])
    return ended.output, str(ended.exception)


def test_the_newest_check_is_one_that_has_the_cell(tmp_path, here):
    mine, longer, other = (
        published_of(tmp_path, name) for name in ("heads.py", "heads_2.py", "lens.py")
    )
    assert shown("lens")[0].startswith(f"the newest check of this folder with 'lens': {other.id}")
    assert f": {longer.id}" in shown("heads_2")[0]
    assert f": {mine.id}" in shown("heads")[0]  # a whole name, before a part of a newer one
    assert f": {longer.id}" in shown("HEADS")[0]
    _, error = shown("nowhere")
    assert "no check has a cell 'nowhere'" in error and "conformance list" not in error
    assert "there are checks of lens, heads_2, heads; make one: conformance check FILE" in error


def test_a_check_that_cannot_be_read_is_not_the_one_that_is_meant(tmp_path, here):
    mine, newer = (published_of(tmp_path, "heads.py") for _ in range(2))
    (newer.path / "plan.json").write_text("{")
    assert f": {mine.id}" in shown("heads")[0]


def test_in_a_folder_that_is_named_checks_are_looked_for_there_alone(tmp_path, here):
    kept_there = published_of(tmp_path, "heads.py", tmp_path / "rep")
    published_of(tmp_path, "lens.py")
    assert f": {kept_there.id}" in shown("heads", "--reports", "rep")[0]
    said, error = shown("lens", "--reports", "rep")
    assert not said and "no check has a cell 'lens'" in error and "checks of heads;" in error
    assert "no check has a cell 'heads'" in shown("heads")[1]
    assert "there is no check" in shown("heads", "--reports", "nowhere")[1]


def commands(output):
    """The lines that `show` ends with, by what they begin with."""
    lines = (line.partition(": ") for line in output.splitlines())
    return {begin: shlex.split(line) for begin, _, line in lines if begin in {"again", "alone"}}


def found_by(alone):
    """The run that a line finds which ends in `--run NAME --reports FOLDER`."""
    return selecting.open_run(Path(alone[-1]), alone[-3], alone[2]).path


def test_the_commands_of_a_check_work_where_they_are_shown(tmp_path, monkeypatch):
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    run = published_of(tmp_path, "heads.py", tmp_path / "rep", "--reports", "rep")
    said = commands(shown("heads", "--reports", "rep")[0])
    assert said["again"][:2] == ["conformance", "check"]
    assert said["again"][-2:] == said["alone"][-2:] == ["--reports", "rep"]
    assert found_by(said["alone"]) == run.path.resolve()
    (tmp_path / "else where").mkdir()
    monkeypatch.chdir(tmp_path / "else where")
    said = commands(shown("heads", "--reports", "../rep")[0])
    assert said["again"][:4] == ["cd", str(tmp_path), "&&", "conformance"]
    assert said["again"][-2:] == ["--reports", "rep"]
    assert said["alone"][-2:] == ["--reports", "../rep"]
    assert found_by(said["alone"]) == run.path.resolve()
    assert stored_check.read_request(run).options == (
        "--reports",
        "rep",
    )  # as it is when it is judged again


def test_a_check_that_is_found_without_a_folder_is_told_without_one(tmp_path, here):
    published_of(tmp_path, "heads.py")
    said = commands(shown("heads")[0])
    assert "--reports" not in (*said["again"], *said["alone"])


def test_what_a_file_loads_is_kept_and_laid_beside_its_script(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data").mkdir()
    for name in ("vector.pt", "data/more.pt", "other.pt", ".hidden"):
        (tmp_path / name).write_text(name)
    text = FILE.replace("Hello", "data/more.pt").replace('hidden"', '.hidden"')
    file = tmp_path / "my trace.py"
    request = request_for(file)
    file.write_text(f'{text}\n\nVECTOR = open("vector.pt").read()\nNOWHERE = "absent.pt", "."\n')
    request = replace(request, files=(user_file.read(file),))
    names = ["data/more.pt", "helper.py", "my trace.py", "vector.pt"]
    assert sorted(stored_check.needed_files(file)) == names
    run = stored_check.begin(request, tmp_path / "again")
    for name in ("vector.pt", "data/more.pt"):
        (tmp_path / name).unlink()
    gathered(run, "my-trace", factor=2.0)
    published(request, run)
    [cell] = run.results().cells
    found = script.script_of(run, cell).beside()
    assert {name: path.read_text() for name, path in found.items()} == {
        "data/more.pt": "data/more.pt",
        "helper.py": "LAYER = 1\n",
        "vector.pt": "vector.pt",
    }
