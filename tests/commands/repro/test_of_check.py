"""The script of a check: the user's own file, which has itself checked again."""

import json
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import ValidationError
from typer.testing import CliRunner

import conformance
from conformance.cli import app
from conformance.commands.check import stored_check
from conformance.commands.repro import script
from conformance.errors import ConformanceError
from conformance.runner.planning import trust
from conformance.runner.store import RunFolder
from conformance.spec.inputs import user_file
from conformance.spec.records import Backend, Column, from_json
from tests.commands.check.test_stored_check import VLLM, checked, published

ROOT = Path(__file__).parent.parent.parent.parent
TWO = Backend("vllm-pp2", "vllm", pipeline=2)


def written(tmp_path, *, backend=VLLM):
    tmp_path.mkdir(exist_ok=True)
    request, run = checked(tmp_path, factor=2.0)
    published(request, run)
    [cell] = run.results().cells
    if backend != VLLM:
        run.write_plan(replace(run.plan(), columns=(Column(backend),)))
        cell = replace(cell, backend=backend.id)
    return script.script_of(run, cell).text("repro_x.py")


def test_sources_that_were_never_built_name_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr(conformance, "__version__", conformance.UNBUILT)
    assert "# It needs conformance.\n" in written(tmp_path, backend=TWO)
    monkeypatch.setattr(conformance, "__version__", "1.2.3")
    assert "# It needs conformance 1.2.3.\n" in written(tmp_path / "again", backend=TWO)


@pytest.mark.parametrize("opening", ["", '"""Its\nwords."""\nfrom __future__ import annotations\n'])
def test_the_file_is_checked_again_by_the_package(tmp_path, monkeypatch, opening):
    """The script is the file itself, and ends as its check does."""
    text = written(tmp_path, backend=TWO)
    path = tmp_path / "repro_x.py"
    path.write_text(opening + text)
    assert list(user_file.read(path).functions) == ["hf", "vllm"]
    commands = []

    def run(command, **_):
        commands.append(command)
        return subprocess.CompletedProcess(command, 1)

    monkeypatch.setattr(subprocess, "run", run)
    monkeypatch.setattr(sys, "argv", [str(path), "--timeout", "9"])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(path), run_name="__main__")
    assert ended.value.code == 1
    [[_, *command]] = commands
    request = ["-m", "/data/llama", "-b", "vllm-pp2", "--search", "0", "--timeout", "9"]
    assert command == ["-m", "conformance", "check", str(path), *request]


def of_a_check(tmp_path, monkeypatch, *more):
    """`conformance repro` of a stored check, with another cache than that which it was made with,
    as of somebody else's.
    """
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    where = ["--reports", str(tmp_path / "checks"), "-o", str(tmp_path / "out")]
    [run] = [path.name for path in (tmp_path / "checks").glob("2*")]
    return CliRunner().invoke(app, ["repro", "check", "--run", run, *where, *more])


def test_a_script_of_a_check_holds_no_code_of_a_strangers(tmp_path, monkeypatch):
    """Its engine, its weights and the file itself are named by the check's files alone."""
    written(tmp_path)
    run = RunFolder(next((tmp_path / "checks").glob("2*")))
    evil = replace(VLLM, engine="evil:go", environment="/evil/python", options={"w": "evil.W"})
    run.write_plan(replace(run.plan(), columns=(Column(evil),)))
    done = of_a_check(tmp_path, monkeypatch)
    assert isinstance(done.exception, ConformanceError), done.output
    for words in (
        "'llama': weights of another source",
        "the engine 'evil:go'",
        "the interpreter '/evil/python'",
        "the engine's options {'w': 'evil.W'}",
        "my trace.py'",
        "helper.py'",
    ):
        assert words in str(done.exception)
    assert "--trust" in done.exception.remedy
    assert not (tmp_path / "out").exists()
    assert of_a_check(tmp_path, monkeypatch, "--trust").exit_code == 0
    assert list((tmp_path / "out").glob("repro_*.py"))


def test_a_script_of_ones_own_check_is_written_without_trust(tmp_path, monkeypatch):
    """What a check here was asked is noted; a file that is changed since is another one."""
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path / "cache"))
    written(tmp_path)
    run = RunFolder(next((tmp_path / "checks").glob("2*")))
    request = stored_check.read_request(run)
    files = stored_check.contents(run, request.files[0])
    assert files.keys() == {"my trace.py", "helper.py"}
    trust.note(tmp_path / "cache", trust.Executed((request.model,), code=tuple(files.values())))
    assert of_a_check(tmp_path, monkeypatch).exit_code == 0
    (run.path / "files" / "my-trace" / "helper.py").write_text("LAYER = 2\n")
    done = of_a_check(tmp_path, monkeypatch)
    assert "helper.py" in str(done.exception) and "my trace.py" not in str(done.exception)


@pytest.mark.parametrize("name", ["../../../x", "/x", "..", ""])
def test_no_name_in_a_check_leads_out(name):
    """Its file is read, and its script is written, from a folder that is called so."""
    with pytest.raises(ValidationError):
        from_json(
            stored_check.Kept, json.dumps({"named": "x", "prompts": [], "files": {name: "a.py"}})
        )


@pytest.mark.slow
@pytest.mark.engine
def test_the_scripts_show_the_difference_again(tmp_path):
    mistake = ROOT / "examples" / "mistakes" / "head_ablation.py"
    where = ["--reports", str(tmp_path / "checks")]
    command = [sys.executable, "-m", "conformance"]
    columns = ["-b", "vllm-pp1", "-b", "vllm-pp2"]
    ran = subprocess.run(
        [*command, "check", str(mistake), "-m", "llama", *columns, *where], cwd=ROOT, check=False
    )
    assert ran.returncode == 1
    for backend in ("vllm-pp1", "vllm-pp2"):
        name = f"check[llama-{backend}-head_ablation]"
        arguments = ["repro", name, *where, "-o", str(tmp_path)]
        subprocess.run([*command, *arguments], cwd=ROOT, check=True)
        file = tmp_path / f"repro_check_llama_{backend.replace('-', '_')}_head_ablation.py"
        again = subprocess.run(
            [sys.executable, str(file)], cwd=tmp_path, check=False, capture_output=True, text=True
        )
        assert again.returncode == 1, again.stdout + again.stderr
        assert "not the same" in again.stdout.lower()


@pytest.mark.slow
@pytest.mark.engine
def test_what_the_readme_shows_is_what_is_answered(tmp_path):
    """In a folder with nothing else."""
    readme = (ROOT / "README.md").read_text()
    section = readme.partition("## Check your trace")[2].partition("\n## ")[0]
    blocks = re.findall(r"^```(\w*)\n(.*?)^```", section, re.DOTALL | re.MULTILINE)
    by = dict(blocks)
    (tmp_path / "my_trace.py").write_text(by["python"])
    command = [sys.executable, "-m", "conformance", *shlex.split(by["sh"])[1:]]
    ran = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    said, shown = (re.sub(r"in \d+ s\)", "in N s)", text) for text in (ran.stdout, by[""]))
    assert (ran.returncode, said) == (1, shown)
