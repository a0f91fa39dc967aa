"""The script of a check: the user's own file on both sides, with nothing of this package where
it needs nothing.
"""

import ast
import json
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from typer.testing import CliRunner

import conformance
from conformance.check import kept, script, source
from conformance.cli import app
from conformance.engines.user_trace import alone
from conformance.errors import ConformanceError
from conformance.planning import trust
from conformance.records import Backend, Column, Job, Precision, from_json
from conformance.store import RunFolder, gathered_in
from conformance.store.files import read_record, write_record
from tests.check.test_kept_check import VLLM, checked, published

ROOT = Path(__file__).parent.parent.parent
TWO = Backend("vllm-pp2", "vllm", pipeline=2)


def written(tmp_path, *, backend=VLLM):
    tmp_path.mkdir(exist_ok=True)
    asked, run = checked(tmp_path, factor=2.0)
    published(asked, run)
    [cell] = run.results().cells
    if backend != VLLM:
        run.write_plan(replace(run.plan(), columns=(Column(backend),)))
        cell = replace(cell, backend=backend.id)
    folder = run.group_folder("llama", gathered_in(backend.id, Precision.FLOAT32)).path
    folder.mkdir(parents=True, exist_ok=True)
    job = Job("x:y", asked.model, Column(backend), tmp_path, folder, tmp_path, ())
    write_record(folder / "job.json", job)
    return script.Script(run, cell).text("repro_x.py")


def test_sources_that_were_never_built_name_no_version(tmp_path, monkeypatch):
    monkeypatch.setattr(conformance, "__version__", conformance.UNBUILT)
    assert "# It needs conformance.\n" in written(tmp_path, backend=TWO)
    monkeypatch.setattr(conformance, "__version__", "1.2.3")
    assert "# It needs conformance 1.2.3.\n" in written(tmp_path / "again", backend=TWO)


def imported(text):
    nodes = list(ast.walk(ast.parse(text)))
    names = {node.module for node in nodes if isinstance(node, ast.ImportFrom)}
    names |= {a.name for node in nodes if isinstance(node, ast.Import) for a in node.names}
    return {name.partition(".")[0] for name in names}


def test_two_functions_on_one_stage_need_nothing_of_this_package(tmp_path):
    text = written(tmp_path)
    assert "conformance" not in imported(text)
    assert {"nnsight", "vllm", "torch"} <= imported(text)
    file = source.read(tmp_path / "my trace.py")
    assert all(file.text_of(side) in text for side in ("hf", "vllm"))
    assert "# It reads helper.py, beside it.\n" in text


@pytest.mark.parametrize("opening", ["", '"""Its\nwords."""\nfrom __future__ import annotations\n'])
def test_what_needs_the_relay_is_checked_again_by_the_package(tmp_path, monkeypatch, opening):
    """The script is the file itself, and ends as its check does."""
    text = written(tmp_path, backend=TWO)
    path = tmp_path / "repro_x.py"
    path.write_text(opening + text)
    assert list(source.read(path).functions) == ["hf", "vllm"]
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
    asked = ["-m", "/data/llama", "-b", "vllm-pp2", "--search", "0", "--timeout", "9"]
    assert command == ["-m", "conformance", "check", str(path), *asked]


def test_a_difference_is_a_thousandth_and_a_leading_axis_is_none():
    value = torch.ones(3, 4)
    assert alone.repro_compared({"a": value[None]}, {"a": value + 1e-5}) == 0
    assert alone.repro_compared({"a": value}, {"a": value * 1.01}) == 1
    assert alone.repro_compared({"a": value}, {"a": value[:2]}) == 1
    assert alone.repro_compared({"a": value}, {"b": value}) == 1


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
        "weights loaded from",
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
    asked = kept.asked_of(run)
    files = kept.contents(run, asked.files[0])
    assert files.keys() == {"my trace.py", "helper.py"}
    trust.note(tmp_path / "cache", trust.Executed((asked.model,), code=tuple(files.values())))
    folder = run.group_folder("llama", gathered_in(VLLM.id, Precision.FLOAT32)).path
    job = read_record(Job, folder / "job.json")
    own = tmp_path / "cache" / "checkpoints" / "llama-1"
    own.mkdir(parents=True)
    write_record(folder / "job.json", replace(job, checkpoint=own))
    assert of_a_check(tmp_path, monkeypatch).exit_code == 0
    (run.path / "files" / "my-trace" / "helper.py").write_text("LAYER = 2\n")
    done = of_a_check(tmp_path, monkeypatch)
    assert "helper.py" in str(done.exception) and "my trace.py" not in str(done.exception)


@pytest.mark.parametrize("name", ["../../../x", "/x", "..", ""])
def test_no_name_in_a_check_leads_out(name):
    """Its file is read, and its script is written, from a folder that is called so."""
    with pytest.raises(ValidationError):
        from_json(kept.Kept, json.dumps({"named": "x", "prompts": [], "files": {name: "a.py"}}))


def test_values_are_named_by_the_way_to_them():
    found = alone.repro_called(
        lambda model, prompt: {"h": [{3: 1.0}], "t": prompt}, None, ["a", "b"]
    )
    assert list(found) == ["prompt 0: h[0][3]", "prompt 0: t", "prompt 1: h[0][3]", "prompt 1: t"]


@pytest.mark.slow
@pytest.mark.engine
def test_the_scripts_show_the_difference_again(tmp_path):
    """On one stage without this package, on two by the installed one."""
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
            [sys.executable, str(file)],
            cwd=tmp_path,
            check=False,
            capture_output=True,
            text=True,
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
