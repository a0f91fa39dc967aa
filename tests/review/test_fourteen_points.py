"""What a hostile reading of the judge proved, point by point: each experiment is found, and is
not found any more when the mechanism that finds it is switched off.
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
from conformance.commands.selftest.fault import INSIDE
from conformance.commands.selftest.faults import FAULTS
from conformance.commands.selftest.table import totals
from conformance.errors import ConformanceError
from conformance.judge.cell import verdicts
from conformance.judge.cell.attribution import Plain, attribute
from conformance.judge.cell.both_precisions import decide
from conformance.judge.cell.judge_cell import Judgement, judge_cell
from conformance.judge.cell.measures import tokens
from conformance.judge.cell.measures.draws import Draws
from conformance.judge.cell.measures.gain import Effect, Landing
from conformance.judge.cell.reference import ReferenceRuns, read_reference
from conformance.judge.expectations import load
from conformance.judge.runs.witness import find_confirmation
from conformance.runner.planning.jobs import REFERENCE
from conformance.runner.store import RunFolder, gathered_in
from conformance.spec.inputs import manifest
from conformance.spec.records import (
    BF16_LIMITS,
    FLOAT32_LIMITS,
    Answer,
    Backend,
    CellResult,
    Column,
    Group,
    Judged,
    Limits,
    Model,
    Outcome,
    Owner,
    Precision,
    Side,
    Site,
    Status,
    Thresholds,
    Verdict,
    Witness,
    widened,
)
from conformance.spec.records.injected import Ending, Kind, Row
from conformance.spec.scenario import scenario
from conformance.worker.frames import frames
from tests import known_runs
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
    draws: Draws | None = None,
    **more: bool,
) -> Judgement:
    has_edit = any(Site.parse(name).run == "edited" for name in known["truth"])
    found = read_reference(known, has_edit=has_edit, precision=precision, **more)
    assert isinstance(found, ReferenceRuns), found
    return judge_cell(
        observed,
        found,
        has_edit=has_edit,
        equal=(),
        prompt_ids=toy.IDS,
        reference_ids=toy.IDS,
        limits=limits or Thresholds().of(precision),
        draws=draws,
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
        if value.is_floating_point()
        else value
        for site, value in baseline.items()
        if Site.parse(site).name == "stream"
    } | {site: value for site, value in baseline.items() if Site.parse(site).name != "stream"}


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


def test_04_injections_behind_the_adapter_are_told_from_those_in_the_engine() -> None:
    acts = {name: fault.point in INSIDE for name, fault in FAULTS.items()}
    assert acts["edit-undone"] and acts["mlp-lost"] and acts["pp-noise"] and acts["rows-mixed"]
    assert acts["half-stream"] and acts["write-twice"] and acts["logits-scale"]  # in its mediator
    assert not (acts["stream-shape"] or acts["name-clash"] or acts["samples-dtype"])
    row = Row(
        *("stream-shape", Side.NNSIGHT, "stream-shape", "llama", "hf", "read_all", "pair", 0.0, ""),
        *(Ending.CAUGHT, Verdict.WRONG, (Verdict.WRONG,), True),
    )
    counted = totals([row, row, replace(row, inside=True)], 10, 0)
    assert (counted.inside.count, counted.inside.total) == (1, 3)


def test_05_a_cap_that_nothing_reaches_is_seen_to_be_untested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_keys = pytest.importorskip("bench.config_keys")
    monkeypatch.setenv("CONFORMANCE_CACHE", str(tmp_path))
    [model] = config_keys.tiny_models(["gemma2"])
    assert config_keys.unseen(model, "*_logit_softcapping") == []
    [source] = model.sources
    high = replace(source, config={**source.config, "attn_logit_softcapping": 1e5})
    hidden = config_keys.unseen(replace(model, sources=(high,)), "attn_logit_softcapping")
    assert "attn_logit_softcapping=None" in [change.name for change in hidden]


def test_06_blame_goes_by_where_packages_lie_and_by_who_confirms_the_reference() -> None:
    clone = Path("/clones/conformance")
    packages = clone / ".venv" / "site-packages"
    roots = {clone / "conformance": Owner.HARNESS, packages / "nnsight": Owner.NNSIGHT}
    torchs = packages / "torch" / "nn" / "modules" / "module.py"
    text = "".join(
        f'  File "{path}", line 3, in f\n' for path in (packages / "nnsight" / "x.py", torchs)
    )
    raised = replace(cell(Verdict.ERROR), frames=frames(text, roots))
    assert side(raised) is Side.NNSIGHT
    everywhere = [replace(cell(Verdict.WRONG), backend=name) for name in ("hf", "vllm-pp1")]
    assert side(everywhere[1], *everywhere) is Side.UNDECIDED
    differs = Plain(agrees=False, evidence="its logits")
    assert side(cell(Verdict.WRONG), plain=differs) is Side.UNDECIDED
    confirmed = replace(differs, confirmed="another column stands behind the reference")
    assert side(cell(Verdict.WRONG), plain=confirmed) is Side.ENGINE


def cell(verdict: Verdict) -> CellResult:
    return known_runs.cell("m", "vllm-pp1", "clean", "all", verdict=verdict)


def side(failed: CellResult, *others: CellResult, plain: Plain | None = None) -> Side:
    found = attribute(failed, others, plain=plain)
    assert found is not None
    return found.side


def test_07_who_stands_behind_the_reference_is_said(tmp_path: Path) -> None:
    run, model = RunFolder(tmp_path), Model("m", "llama", ())
    folder, case = gathered_in("vllm-pp1", FLOAT32), "without_nnsight.all"
    logits = torch.linspace(-9, 0, 50)
    ways = {"truth|p0/s0/logits": logits, "float32_sdpa|p0/s0/logits": logits * (1 + 1e-6)}
    run.write_cell(model.id, REFERENCE.id, case, Outcome(Status.OK), ways)
    column = Column(Backend("vllm-pp1", "vllm"))
    for definition, off, witness in (
        ("LlamaForCausalLM", 1e-6, Witness.CONFIRMED),
        ("LlamaForCausalLM", 1e-2, Witness.DISAGREES),
        ("TransformersForCausalLM", 1e-6, Witness.SHARED),
    ):
        group = Group(model.id, folder, FLOAT32, identity={"model": definition})
        run.group_folder(model.id, folder).write_group(group)
        values = {"p0/s0/logits": logits * (1 + off)}
        run.write_cell(model.id, folder, case, Outcome(Status.OK), values)
        assert find_confirmation(run, model, [column]).witness is witness
    assert find_confirmation(run, model, []).witness is Witness.UNKNOWN
    assert "**The reference**" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_08_a_token_may_not_contradict_its_own_engines_logits(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    observed = candidate(BF16, None)
    known = dict(reading())
    # A near-tie that baseline runs explain: the runner-up, while the engine's logits say otherwise.
    for values in (observed, *known.values()):
        logits = values["p0/s0/logits"]
        logits[int(logits.argsort()[-2])] = logits.max() - 1e-6 * logits.abs().max()
    logits = observed["p0/s0/logits"]
    logits[int(logits.argsort()[-2])] = logits.max() - 2**-6 * logits.abs().max()
    observed["p0/s0/tokens"] = logits.argsort()[-2:-1]
    assert judge(observed, known, BF16).verdict is Verdict.WRONG
    monkeypatch.setattr(tokens, "follow_logits", lambda *_: None)
    assert judge(observed, known, BF16).verdict.passes
    reading.cache_clear()


def drawn(choose: Callable[[Tensor, torch.Generator], Tensor], count: int = 160) -> Members:
    """So many draws, with the reference's logits along them."""
    source = torch.Generator().manual_seed(3)
    logits = [2 * torch.randn(60, generator=source) for _ in range(count)]
    values = {f"p0/s{step}/logits": row for step, row in enumerate(logits)}
    ids = {f"p0/s{step}/sampled": choose(row, source) for step, row in enumerate(logits)}
    ways = {f"float32_{way}": {**values, **ids} for way in ("a", "b")}
    return {"truth": {**values, **ids}, **ways}


def baseline_draw(logits: Tensor, source: torch.Generator) -> Tensor:
    return torch.multinomial(logits.softmax(-1), 1, generator=source)


def test_09_drawn_ids_are_judged_by_their_likelihood() -> None:
    known = drawn(baseline_draw)
    assert judge(known["truth"], known, draws=Draws()).verdict.passes
    for fault in (
        lambda logits, _: logits.argmax().reshape(1),
        lambda logits, source: torch.randint(len(logits), (1,), generator=source),
        lambda logits, source: baseline_draw(logits / 3, source),
    ):
        known = drawn(fault)
        assert judge(known["truth"], known, draws=Draws()).verdict is Verdict.WRONG
        assert judge(known["truth"], known, draws=None).verdict.passes  # off


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


def test_12_a_row_at_a_routers_tie_is_judged_in_float32() -> None:
    def one_row(stream: Tensor) -> Tensor:
        stream = stream.clone()
        stream[2] = stream[2] + 0.32 * stream[2].norm() * toy.vector(1.0) / toy.vector(1.0).norm()
        return stream

    for precision, fails in ((FLOAT32, True), (BF16, False)):
        observed = toy.observe(
            getattr(torch, precision.dtype), toy.CANDIDATE, edits={toy.LAYERS - 1: one_row}
        )
        last = {site: value for site, value in observed.items() if f".{toy.LAYERS - 1}" in site}
        whole = candidate(precision, None) | last
        assert judge(whole, reading(), precision, mixture=True).verdict.fails is fails


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


def test_14_what_is_expected_to_be_wrong_says_how(tmp_path: Path) -> None:
    entries = load(ROOT / "known.yaml").entries
    assert entries
    text = (ROOT / "known.yaml").read_text(encoding="utf-8")
    assert text.count("says: observations are off") >= 1
    path = tmp_path / "known.yaml"
    path.write_text(text.replace("    says: observations are off\n", ""), encoding="utf-8")
    with pytest.raises(ConformanceError, match="says"):
        load(path)
