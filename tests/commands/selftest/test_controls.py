"""What is said of the judge with its gates broken, and what of a self-test one model is."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from conformance.cli import app
from conformance.commands.selftest import controls
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.faulty_columns import Measured, plan
from conformance.commands.selftest.show import show_controls
from conformance.errors import ExitCode
from conformance.judge.cell.judgement import Judgement
from conformance.spec.records import Backend, Model, Site, Source, Verdict
from tests.judge.cell import toy

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


def test_one_models_part_has_its_own_faults_and_fault_free_cells() -> None:
    models = [Model(name, name, (Source("tiny"),)) for name in ("llama", "gpt2")]
    measured = tuple(Measured(model.id) for model in models)
    whole = plan([FAULTS["mlp-lost"]], models, (Backend("hf", "hf"),), measured=measured)
    part = whole.only(models[1])
    assert part.models == (models[1],)
    assert part.measured == (measured[1],)
    assert whole.only(models[1], limits=False).measured == ()
    assert {one.model for one in part.faulty} == {"gpt2"}
    assert {cell.model for cell in part.fault_free} == {"gpt2"}
    assert 2 * len(part.faulty) == len(whole.faulty)


def test_controls_are_of_a_stored_self_test() -> None:
    outcome = CliRunner().invoke(app, ["selftest", "--controls"])
    assert outcome.exit_code != ExitCode.OK
    assert "--again" in str(outcome.exception or outcome.output)


def read_back_only() -> Judgement:
    """A write of which nothing is observed but where it was made."""

    def observed(dtype: torch.dtype, parts: int) -> toy.Observations:
        both = toy.edited(dtype, parts, {1: toy.add(toy.vector(0.5))})
        return {name: value for name, value in both.items() if Site.parse(name).layer == 1}

    candidate = observed(torch.bfloat16, toy.CANDIDATE)
    return toy.judge(candidate, toy.reference(observed), has_edit=True)


def second_best_throughout() -> Judgement:
    """Of every prompt the second best id is made the best, by so little that noise excuses it in
    one: the logits are within the noise, and each id is the largest of its own.
    """
    generator = torch.Generator().manual_seed(0)
    noise, gap, margin = 0.05, 0.35, 1e-3
    reference: dict[str, toy.Observations] = {name: {} for name in ("truth", *toy.BASELINE_RUNS)}
    candidate: toy.Observations = {}
    for prompt in range(len(toy.IDS)):
        logits, ids = str(Site("logits", prompt)), str(Site("tokens", prompt))
        reference_values = torch.randn(toy.VOCABULARY, generator=generator).clamp_max(2.0)
        reference_values[10], reference_values[20] = 4.0, 4.0 - gap
        for name in reference:
            error = noise * torch.randn(toy.VOCABULARY, generator=generator)
            own = reference_values if name == "truth" else (reference_values + error).bfloat16()
            reference[name] |= {logits: own, ids: torch.tensor([10])}
        nudged = reference_values.clone()
        nudged[20] += gap + margin
        nudged[10] -= 0.1
        candidate |= {logits: nudged.bfloat16(), ids: torch.tensor([20])}
    return toy.judge(candidate, reference)


@pytest.mark.parametrize(
    ("gate", "cell", "caught"),
    [
        ("arrival", read_back_only, Verdict.VACUOUS),
        ("flips", second_best_throughout, Verdict.WRONG),
    ],
)
def test_a_gate_that_no_injection_needs_is_broken_on_a_cell_made_for_it(gate, cell, caught) -> None:
    found = cell()
    assert found.verdict is caught, found.reason
    with controls.find(gate).broken():
        assert cell().verdict is Verdict.MATCH, cell().reason


@pytest.mark.parametrize("gate", [*controls.CONTROLS, *controls.OUT_OF_REACH])
def test_a_broken_gate_is_whole_again_afterwards(gate: str) -> None:
    patches = controls.find(gate).patches
    whole = [getattr(owner, name) for owner, name, _ in patches]
    with controls.find(gate).broken():
        assert [getattr(owner, name) for owner, name, _ in patches] == [new for *_, new in patches]
    assert [getattr(owner, name) for owner, name, _ in patches] == whole


def test_every_gate_that_no_injection_needs_has_such_a_cell() -> None:
    assert set(controls.OUT_OF_REACH) == {"arrival", "flips"}
    assert not controls.OUT_OF_REACH.keys() & controls.CONTROLS.keys()
