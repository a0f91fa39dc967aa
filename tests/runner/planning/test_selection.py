"""What is asked for by name, tier and expression: the command line and pytest mean the same."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.shared.options import RunOptions, Without, spread
from conformance.errors import ConformanceError
from conformance.runner.environments import InstalledEnvironment, Untestable, parse
from conformance.runner.planning.selection import Choice, every_cell, select

ROOT = Path(__file__).parents[3]
MANIFEST = """\
models:
  llama: { tiny: {} }
  gpt2: { tiny: {}, tiers: [full] }
backends:
  hf: { engine: hf }
  slow: { engine: hf, default: false }
tiers:
  full: { scenarios: [clean, skip], backends: { slow: default } }
"""


@pytest.fixture
def choice(tmp_path):
    path = tmp_path / "models.yaml"
    path.write_text(MANIFEST)

    def made(**fields) -> Choice:
        return Choice(manifest=path, scenarios=ROOT / "scenarios", **fields)

    return made


def columns(selected):
    return [column.id for column in selected.columns]


def test_without_a_name_the_tier_and_the_defaults_are_meant(choice):
    selected = select(choice())
    assert [model.id for model in selected.models] == ["llama"]
    assert columns(selected) == ["hf"]
    assert {cell.scenario for cell in selected.cells} > {"clean", "skip", "steering"}


def test_a_tier_names_scenarios_and_where_a_slow_backend_runs(choice):
    selected = select(choice(tier="full", backend=["hf", "slow"]))
    assert {cell.scenario for cell in selected.cells} == {"clean", "skip"}
    assert {cell.model for cell in selected.cells if cell.backend == "slow"} == {"llama"}
    named = select(choice(tier="full", backend=["slow"], model=["gpt2"]))
    assert {cell.model for cell in named.cells} == {"gpt2"}


def test_an_environment_makes_a_column_and_one_that_is_not_there_says_why(choice):
    made = {
        parse("six==1.0"): InstalledEnvironment("abc", Path("/envs/abc/bin/python"), {}, 1.0),
        parse("six==2.0"): Untestable("install", "no space"),
    }
    env = ["hf=here", "hf=one: six==1.0", "hf=two: six==2.0"]
    selected = select(choice(env=env, tier="full"), lambda spec, keep: made[spec])
    assert columns(selected) == ["hf", "hf@one", "hf@two"]
    assert [column.interpreter for column in selected.columns] == ["", "/envs/abc/bin/python", ""]
    assert "no space" in selected.columns[2].untestable
    narrow = select(
        choice(env=["slow=one: six==1.0"], backend=["slow"], tier="full"),
        lambda spec, keep: made[spec],
    )
    assert {cell.model for cell in narrow.cells} == {"llama"}  # wherever the backend runs


@pytest.mark.parametrize(
    "wrong", [{"model": ["lama"]}, {"tier": "huge"}, {"expression": "nothing"}]
)
def test_what_nothing_has_is_refused(choice, wrong):
    with pytest.raises(ConformanceError):
        select(choice(**wrong))


def test_the_command_line_and_pytest_list_the_cells_that_are_meant(choice):
    meant = [cell.id for cell in select(choice(tier="full")).cells]
    options = ["--models", str(choice().manifest), "--scenarios", str(ROOT / "scenarios")]
    listed = CliRunner().invoke(app, ["list", "--tier", "full", *options]).stdout.split()
    assert [name for name in listed if "[" in name] == meant
    whole = every_cell(choice().manifest, ROOT / "scenarios")
    assert len(whole) > len(meant)


def test_pytest_collects_the_cells_of_a_tier():
    command = [sys.executable, "-m", "pytest", "scenarios/clean.py", "--collect-only", "-q"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    chosen = Choice(manifest=ROOT / "models.yaml", scenarios=ROOT / "scenarios")
    meant = {cell.id for cell in select(chosen).cells if cell.scenario == "clean"}
    assert {line.partition("::")[2] for line in done.stdout.splitlines() if "::" in line} == meant


@dataclass(frozen=True)
class Own:
    flag: Annotated[int, typer.Option(help="A number.")] = 3


def test_a_record_of_options_is_spread_and_given_back_whole():
    given = []

    def verb(
        choice: Annotated[Choice, Without("env", "environments")],
        running: RunOptions,
        own: Own,
        name: str = "x",
    ) -> None:
        given.append((choice, running, own, name))

    verb.__annotations__ |= {"choice": Annotated[Choice, Without("env", "environments")]}
    only = typer.Typer()
    only.command()(spread(verb))
    words = ["-m", "a", "-m", "b", "-k", "c", "-j", "2", "--flag", "7", "--name", "y"]
    assert CliRunner().invoke(only, words).exit_code == 0
    assert CliRunner().invoke(only, []).exit_code == 0
    assert CliRunner().invoke(only, ["--env", "here"]).exit_code == 2
    choice, running, own, name = given[0]
    assert (choice.model, choice.expression, running.groups) == (["a", "b"], "c", 2)
    assert (own.flag, name) == (7, "y")
    assert given[1] == (Choice(), RunOptions(), Own(), "x")


def test_an_environment_is_built_for_a_backend_that_is_meant_and_for_no_other(choice, tmp_path):
    path = tmp_path / "models.yaml"
    lens = "  lens: { engine: pyvene, environment: old, default: false }\n"
    path.write_text(MANIFEST.replace("tiers:\n  full", f"{lens}tiers:\n  full"))
    declared = tmp_path / "environments.yaml"
    declared.write_text("environments: { old: { requirements: [pyvene==0.1.8], engines: false } }")
    built = []

    def build(spec, keep):
        assert not keep  # a backend's own environment is what it was declared to be
        built.append(spec.requirements)
        return Untestable("resolve", "no")

    own = {"manifest": path, "scenarios": ROOT / "scenarios", "environments": declared}
    assert columns(select(Choice(**own), build)) == ["hf"] and not built
    assert columns(select(Choice(backend=["all"], **own), build)) == ["hf", "slow"] and not built
    meant = tmp_path / "cells.txt"
    meant.write_text("clean[llama-slow-alone]\n")
    assert columns(select(Choice(cells=meant, **own), build)) == ["slow"] and not built
    meant.write_text("clean[llama-slow-alone]\nclean[llama-lens-alone]\n")
    both = select(Choice(cells=meant, **own), build)
    assert columns(both) == ["slow", "lens"] and built == [("pyvene==0.1.8",)]
    assert [cell.id for cell in both.cells] == meant.read_text().split()
