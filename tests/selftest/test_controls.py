"""What is said of the judge with its gates broken, and what of a self-test one model is."""

from __future__ import annotations

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from conformance.cli import app
from conformance.errors import ExitCode
from conformance.records import Backend, Model, Source
from conformance.selftest import run
from conformance.selftest.faults import FAULTS
from conformance.selftest.show import show_controls

SOUND = ("", ())
RED, GREEN = ("median", ("98 % caught: 1 of 9",)), ("leak", ())


@pytest.mark.parametrize(
    ("outcomes", "held"),
    [
        ([SOUND, RED], True),
        ([SOUND, RED, GREEN], False),
        ([("", ("no false alarm: 1 of 9",)), RED], False),
    ],
    ids=["all red", "one green", "the sound judge red"],
)
def test_every_broken_gate_must_be_red_and_the_sound_judge_green(outcomes, held) -> None:
    text = io.StringIO()
    assert show_controls(outcomes, Console(file=text, width=100)) is held
    lines = text.getvalue().splitlines()
    assert len(lines) == len(outcomes) + 1
    assert any(
        line.split() == ["without", "median", "red", "98", "%", "caught:", "1", "of", "9"]
        for line in lines
    )


def test_one_models_part_has_its_own_faults_and_honest_cells() -> None:
    models = [Model(name, name, (Source("tiny"),)) for name in ("llama", "gpt2")]
    whole = run.plan([FAULTS["mlp-lost"]], models, (Backend("hf", "hf"),), measured=None)
    part = whole.only(models[1], ())
    assert part.models == (models[1],)
    assert part.measured == ()
    assert {one.cells[0].model for one in part.faulty} == {"gpt2"}
    assert {cell.model for cell in part.honest} == {"gpt2"}
    assert 2 * len(part.faulty) == len(whole.faulty)


def test_controls_are_of_a_stored_self_test() -> None:
    outcome = CliRunner().invoke(app, ["selftest", "--controls"])
    assert outcome.exit_code != ExitCode.OK
    assert "--again" in str(outcome.exception or outcome.output)
