"""What a hostile reading of the judge proved: each experiment is found, and is not found any more
when the mechanism that finds it is switched off. The numbers are the reading's; its other points
are held by the tests of the part that finds them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor

from conformance.commands.selftest import sensitivity
from conformance.judge.cell import verdicts
from conformance.judge.cell.both_precisions import decide
from conformance.judge.cell.judge_cell import Judgement, judge_cell
from conformance.judge.cell.measures.gain import Effect, Landing
from conformance.judge.cell.reference import ReferenceRuns, read_reference
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.inputs import manifest
from conformance.spec.records import (
    BF16_LIMITS,
    FLOAT32_LIMITS,
    Answer,
    Backend,
    Group,
    Judged,
    Limits,
    Model,
    Outcome,
    Precision,
    Site,
    Status,
    Thresholds,
    Verdict,
    widened,
)
from conformance.spec.records.injected import Kind
from conformance.spec.scenario import scenario
from tests.judge.cell import toy

ROOT = Path(__file__).parents[2]
FLOAT32, BF16 = Precision.FLOAT32, Precision.BF16
AT = 1

Members = dict[str, toy.Observations]


def members(observe: Callable[[torch.dtype, int], toy.Observations]) -> Members:
    """The reference and baseline runs of both precisions."""
    ways = {f"float32_{parts}": observe(torch.float32, parts) for parts in (2, 3, 4)}
    return toy.reference(observe) | ways


@cache
def reading() -> Members:
    return members(toy.observe)


def written(write: Mapping[int, toy.Edit]) -> Members:
    return members(lambda dtype, parts: toy.edited(dtype, parts, write))


def candidate(precision: Precision, write: Mapping[int, toy.Edit] | None) -> toy.Observations:
    dtype = getattr(torch, precision.dtype)
    parts = toy.CANDIDATE
    return toy.observe(dtype, parts) if write is None else toy.edited(dtype, parts, write)


def judge(
    observed: Mapping[str, Tensor],
    known: Members,
    precision: Precision = FLOAT32,
    limits: Limits | None = None,
) -> Judgement:
    has_edit = any(Site.parse(name).run == "edited" for name in known["truth"])
    found = read_reference(known, has_edit=has_edit, precision=precision)
    assert isinstance(found, ReferenceRuns), found
    return judge_cell(
        observed,
        found,
        has_edit=has_edit,
        equal=(),
        prompt_ids=toy.IDS,
        reference_ids=toy.IDS,
        limits=limits or Thresholds().of(precision),
        draws=None,
        alone=False,
    )


def small(rows: slice = slice(None), times: float = 1.0) -> dict[int, toy.Edit]:
    """A write far below the noise of bf16."""
    return {AT: toy.add(toy.vector(0.02), rows, times)}


def coarser(times: float) -> toy.Observations:
    """A correct bf16 run whose errors are so many times as large: another processor's rounding."""
    baseline, reference = candidate(BF16, None), reading()["truth"]
    return {
        site: (reference[site] + times * (value.float() - reference[site])).bfloat16()
        if Site.parse(site).name == "stream"
        else value
        for site, value in baseline.items()
    }


def test_01_a_machine_that_rounds_more_coarsely_raises_no_alarm() -> None:
    meaning = judge(candidate(FLOAT32, None), reading()).verdict
    numerics = judge(coarser(4.0), reading(), BF16).verdict
    assert meaning.passes
    both = [Answer(FLOAT32, meaning, ""), Answer(BF16, numerics, "")]
    assert decide(both).verdict is Verdict.DRIFT and not decide(both).verdict.fails
    # Off: one pair of limits near the floor, as fitted to one machine.
    tight = replace(BF16_LIMITS, far_med=BF16_LIMITS.k_med, far_max=BF16_LIMITS.k_max)
    assert judge(coarser(4.0), reading(), BF16, limits=tight).verdict.fails


def test_02_a_write_that_reaches_nothing_downstream_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write = small(slice(-1, None))
    known = written(write)
    for precision in (FLOAT32, BF16):
        undone = candidate(precision, write)
        for site in [Site.parse(name) for name in undone]:
            if site.run == "edited" and site.layer != AT:
                undone[str(site)] = undone[str(replace(site, run="clean"))].clone()
        assert judge(undone, known, precision).verdict.fails, precision
    # What is too small to be seen further on is no pass, though it was read back rightly.
    back, on = (Site("stream", layer=layer, run="edited") for layer in (AT, AT + 1))
    read_back = Effect(None, Landing.LANDED, 0.0, (), moved=True)
    effects = {back: read_back, on: replace(read_back, landing=Landing.POWERLESS)}
    judged = {replace(site, run="clean"): Judged(str(site), Verdict.MATCH) for site in (back, on)}
    evidence = SimpleNamespace(
        effects=effects, judged=judged, reference=SimpleNamespace(mixture=False, precision=FLOAT32)
    )
    [(verdict, _)] = verdicts._write_claims(evidence, [])  # type: ignore[arg-type]
    assert verdict is Verdict.VACUOUS
    # Another prompt's effect, further on, confirms that one's write alone.
    neighbour = {replace(back, prompt=1): read_back, replace(on, prompt=1): read_back}
    evidence.effects = effects | neighbour
    evidence.judged = judged | {
        replace(site, run="clean"): Judged(str(site), Verdict.MATCH) for site in neighbour
    }
    [(verdict, _)] = verdicts._write_claims(evidence, [])  # type: ignore[arg-type]
    assert verdict is Verdict.VACUOUS
    # Nor is a read-back alone enough where all is bitwise a baseline run.
    faint = replace(read_back, landing=Landing.POWERLESS)
    evidence.effects = {back: faint, on: replace(faint, moved=False)}
    exact = [(Verdict.EXACT, "")]
    [(verdict, _)] = verdicts._write_claims(evidence, exact)  # type: ignore[arg-type]
    assert verdict is Verdict.VACUOUS
    evidence.effects = {back: faint, on: faint}
    assert verdicts._write_claims(evidence, exact) == []  # type: ignore[arg-type]
    evidence.effects = effects
    monkeypatch.setattr(
        verdicts, "_arrived", lambda *_: True
    )  # off: one read-back carries the cell
    assert verdicts._write_claims(evidence, []) == []  # type: ignore[arg-type]


@scenario(twin=True)
def steered(lm: object, case: object) -> None: ...


def stored(folder: Path) -> tuple[RunFolder, Model]:
    """A run with a correct column in float32 of a case that writes."""
    run, model = RunFolder(folder), Model("toy", "llama", ())
    identity = {"layers": toy.LAYERS, "width": toy.WIDTH}
    reference = run.group_folder(model.id, REFERENCE.id)
    reference.write_group(Group(model.id, REFERENCE.id, identity=identity))
    write = {AT: toy.add(toy.vector(0.5), slice(-1, None))}
    known = {f"{m}|{site}": v for m, values in written(write).items() for site, v in values.items()}
    outcome = Outcome(Status.OK, prompt_ids=toy.IDS)
    reference.write_cell("steered.all", outcome, known)
    column = gathered_in("hf", FLOAT32)
    run.write_cell(model.id, column, "steered.all", outcome, candidate(FLOAT32, write))
    return run, model


def test_03_the_headline_is_a_detection_limit_and_wider_limits_turn_it_red(tmp_path: Path) -> None:
    run, model = stored(tmp_path)
    measure = partial(
        sensitivity.limits, run, model, [Backend("hf", "hf")], {"steered": steered}, trials=3
    )
    found = measure(thresholds=Thresholds())
    assert {limit.kind for limit in found} == {kind for kind in Kind if kind.of_write}
    assert sensitivity.broken(found) == []
    assert sensitivity.broken(measure(thresholds=widened(Thresholds(), 20)))


@pytest.mark.parametrize(
    "fault",
    [
        {AT: toy.add(toy.vector(0.02) + 0.7 * toy.vector(0.02, 5))},
        small(times=1.09),
        {AT: lambda stream: toy.add(-0.5 * toy.vector(0.02), slice(2, 3))(small()[AT](stream))},
        small(times=1.001),
    ],
    ids=["off-axis", "gain", "half", "a thousandth"],
)
def test_10_small_doses_hide_nothing(fault: dict[int, toy.Edit]) -> None:
    known = written(small())
    assert judge(candidate(FLOAT32, small()), known).verdict.passes
    assert judge(candidate(FLOAT32, fault), known).verdict.fails
    # Off: beside the noise of bf16.
    blind = replace(FLOAT32_LIMITS, gain_tolerance=0.5, off_axis=1.0, k_med=1e9, k_max=1e9)
    blind = replace(blind, far_med=1e9, far_max=1e9, leak=1e9, gain_sigmas=1.0, single=1e9)
    blind = replace(blind, massive=1e9)
    assert judge(candidate(FLOAT32, fault), known, limits=blind).verdict.passes


def test_10_a_leak_to_earlier_tokens_of_a_small_dose_is_found() -> None:
    known = written(small(slice(-1, None)))
    leaking = {AT: toy.add(toy.vector(0.02))}
    assert judge(candidate(FLOAT32, leaking), known).verdict is Verdict.CONTAMINATED


def erring(share: float) -> dict[int, toy.Edit]:
    """Every row of one layer carries an error of this share of its length."""

    def edit(stream: Tensor) -> Tensor:
        noise = torch.randn(stream.shape, generator=torch.Generator().manual_seed(8))
        noise = noise / noise.norm(dim=-1, keepdim=True) * stream.float().norm(dim=-1, keepdim=True)
        return (stream.float() + share * noise).to(stream.dtype)

    return {AT: edit}


def test_11_one_per_cent_of_error_is_found_on_every_model_without_limits_of_its_own() -> None:
    off = erring(0.01)
    faulty = {
        precision: toy.observe(getattr(torch, precision.dtype), toy.CANDIDATE, edits=off)
        for precision in Precision
    }
    assert judge(faulty[FLOAT32], reading()).verdict is Verdict.WRONG
    assert not judge(faulty[BF16], reading(), BF16).verdict.fails  # off: bf16 alone


def test_13_the_hard_variants_are_kept() -> None:
    known = {model.id: model for model in manifest.load(ROOT / "models.yaml").models}
    for name, key, value in (
        ("qwen3_moe-hard", "num_experts_per_tok", 2),
        ("gpt_oss-hard", "num_experts_per_tok", 2),
        ("deepseek_v3-hard", "first_k_dense_replace", 1),
    ):
        assert known[name].sources[0].config[key] == value and "full" in known[name].tiers
        soft = known[name.removesuffix("-hard")].sources[0].config[key]
        assert soft != value
